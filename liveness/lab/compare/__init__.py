"""Compares the offlines of another detector with ours: pairs, and what only one reports."""

# Imports: console, core, core.wire, text.
# Never: socket, sqlite3, structlog.
