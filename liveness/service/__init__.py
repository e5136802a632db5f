"""The sidecar process: wiring of its parts, start and stop, signals, reload, systemd."""

# Imports: assembly, cluster, compiled, config, core, core.links, core.sessions,
#   core.timers, errors, metrics, outlets, outlets.common, service.common, service.engine,
#   service.http, service.links, service.storage.
# Never: sqlite3, cyclopts, anyio.
