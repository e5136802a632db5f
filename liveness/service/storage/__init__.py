"""The state directory: writes, reads, copies and checks the log, timers and clocks."""

# Imports: config, core, core.links, core.sessions, core.timers, core.wheel, core.wire,
#   errors, metrics, service.common, text.
# Never: starlette, hypercorn, cyclopts.
