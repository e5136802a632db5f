"""Compares the offlines of another detector with ours: pairs, and what only one reports."""

# Imports: console, core, core.wire, errors, text.
# Never: socket, sqlite3, structlog.
