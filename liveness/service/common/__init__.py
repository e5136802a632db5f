"""What every part of the service uses: clocks, logging, notifiers, threads."""

# Imports: core, host_clock, text.
# Never: sqlite3, starlette, hypercorn, cyclopts.
