"""The state directory: writes, trims and reads the log, and stores the clocks."""

# Imports: core, core.sessions, core.wheel, core.wire, errors, metrics, service.common,
#   text.
# Never: starlette, cyclopts.
