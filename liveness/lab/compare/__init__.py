"""Compares the offlines of another detector with ours: pairs, and what only one reports."""

# Imports: client, console, core, core.wire, errors, host_clock, text.
# Never: socket, sqlite3, structlog.
