"""The sidecar process: wiring of its parts, start and stop, signals, reload, systemd."""

# Imports: cluster, config, core, core.links, core.sessions, errors, metrics,
#   service.common, service.engine, service.http, service.links, service.outlets,
#   service.storage, service.timers.
# Never: sqlite3, cyclopts, anyio.
