"""The state directory: writes, reads, copies and checks the log, timers and clocks."""

# Imports: compiled, core, errors, metrics, service.common, text.
# Never: starlette, hypercorn, cyclopts.
