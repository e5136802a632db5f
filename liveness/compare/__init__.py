"""Another detector's offlines beside our own: what both say, and who says more."""

# Imports: console, core, errors, text.
# Never: trio, socket, sqlite3, structlog.
