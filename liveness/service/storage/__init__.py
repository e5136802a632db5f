"""The state directory: log, timers and clocks; writing, reading, copying, checking."""

# Imports: core, errors, metrics, service.common, text.
# Never: starlette, hypercorn, cyclopts.
