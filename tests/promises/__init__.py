"""Were the promises kept? Judged from what was sent and seen, by nothing of the product.

The promises are those of `docs/concepts.md`, by their numbers there. Each is one function
that finds where a whole run broke it; the table in `checker.py` has them all. What belongs to
no single one is in `conduct.py`. A new promise is one function, and a row in both tables.

- Of a run that is over, `run_history.py` has everything that was sent, delivered and done,
  and its plan has the settings. `run_evidence.py` gathers from both what was known of each
  decision, and `checker.py` judges.
- The rules that demo and bench ask too are in `liveness/lab/common/promises.py`.
"""
