"""Publishes the sessions of this host on Redis.

`host` and `partition` are pure: they decide which call comes next, and what its answer
means. `publisher` reads the log, makes the calls, and shows how that goes.
"""

# Imports: cluster, config, core, core.wheel, metrics, service.common,
#   service.outlets.common, service.storage.
# Never: starlette, cyclopts.
