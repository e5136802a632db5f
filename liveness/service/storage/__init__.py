"""The state directory: writes, reads, copies and checks the log, timers and clocks."""

# Imports: core, core.sessions, core.wheel, core.wire, errors, metrics, service.common,
#   text.
# Never: starlette, hypercorn, cyclopts.
