"""`liveness demo`: simulated users, a chat gateway and its sidecar, checked by a judge.

    users ── TCP ── gateway ── Unix socket ── sidecar
      └──────────── judge ───── records ───────┘

To write a gateway of your own, read only `gateway.py`. All other files make the demo:
`users.py` follow their `plans.py`; `demo_host.py` has the gateways with their sidecars, and
the Redis that joins several; `director.py` kills, stops and restarts them, by `script.py` or
by a key; `demo_run.py` connects all of these, `plain_lines.py` and `picture.py` show it, and
`launcher.py` is what the command line calls.
"""

# Imports: client, cluster, config, console, core, errors, lab.common, text.
# Never: starlette, sqlite3.
