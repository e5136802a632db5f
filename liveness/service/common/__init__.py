"""Used by every part of the service: clocks, logging, notifiers, threads."""

# Imports: core, host_clock, text.
# Never: sqlite3, starlette, cyclopts.
