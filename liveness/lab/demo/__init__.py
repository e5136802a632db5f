"""`liveness demo`: simulated users, a chat gateway and its sidecar, checked by a referee.

    users ── TCP ── gateway ── Unix socket ── sidecar
      └──────────── referee ──── records ────────┘

To write a gateway of your own, read only `gateway.py`. All other files make the demo.
`processes.py` starts the gateway and the sidecar. The rest runs in one process:

- `plans.py` and `users.py` simulate the users.
- `director.py` kills, stops and restarts the processes, by `script.py` or by a key.
- `referee.py` checks the records, and `reminders.py` the timers.
- `demo_host.py` is a host: both processes, and the referee that reads their records.
- `demo_run.py` connects all of these; `launcher.py` is what the command line calls.
- `picture.py` shows it on a terminal, and `plain_lines.py` elsewhere.

With `--hosts` there are several hosts, and a Redis that joins them (`redis_program.py`).
`hoppers.py` has the users, `cluster_director.py` the actions, and `cluster_referee.py`
checks who is online anywhere. `cluster_run.py` connects them; `hosts_picture.py` and
`hosts_lines.py` show it.
"""

# Imports: client, cluster, compiled, config, console, core, errors, lab.common, text.
# Never: starlette, hypercorn, sqlite3.
