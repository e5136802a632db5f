"""What outlets share: a place in the log, and how they are."""

# Imports: config, core, metrics, service.common, service.storage.
# Never: starlette, hypercorn, cyclopts.
