"""What outlets share: a cursor in the log, a database for it, and a status."""

# Imports: config, core, core.sessions, metrics, service.common, service.storage.
# Never: starlette, cyclopts.
