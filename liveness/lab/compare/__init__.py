"""Compares the offlines of another detector with ours: pairs, and what only one reports."""

# Imports: console, core, errors, text.
# Never: trio, socket, sqlite3, structlog.
