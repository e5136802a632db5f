"""The whole line at work: simulated users, a chat gateway, its sidecar, and a referee.

    users ── TCP ── gateway ── Unix socket ── sidecar
      └──────────── referee ──── records ────────┘

To write a gateway of your own, read `gateway.py`, and no more. The rest makes the demo,
in one process beside the two: `plans.py` and `users.py` simulate users, `processes.py`
runs gateway and sidecar, `director.py` cuts, stops and restarts them as `script.py` or a
key says, `referee.py` judges what is decided and `reminders.py` what comes due, `stage.py` brings all together, `screen.py`
or, on a terminal, `picture.py` shows it, and `run.py` is what the command line starts.
"""

# Imports: compiled, config, console, core, errors, service.common, text.
# Never: starlette, hypercorn, sqlite3.
