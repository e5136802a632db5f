"""Publishes the sessions of this host on Redis.

`host` and `partition` are pure: they decide which call comes next, and what its answer
means. `publisher` reads the log, makes the calls and measures them.
"""

# Imports: cluster, config, core, core.wheel, metrics, service.common, service.storage.
# Never: starlette, hypercorn, cyclopts.
