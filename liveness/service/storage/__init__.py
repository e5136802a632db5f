"""The files: log, timers and clocks; their writers, readers, snapshots and checks."""

# Imports: core, errors, metrics, service.common, text.
# Never: starlette, hypercorn, cyclopts.
