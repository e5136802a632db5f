"""The sidecar's process: its parts, wired, started and stopped; signals; systemd."""

# Imports: compiled, config, core, errors, metrics, service.common, service.engine,
#   service.http, service.links, service.storage.
# Never: sqlite3, cyclopts, anyio.
