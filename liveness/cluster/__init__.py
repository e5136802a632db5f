"""Presence across hosts on Redis: the format, the functions, and the readers.

coredis is imported only when a connection is made: a sidecar without a cluster in its
settings does not need it.
"""

# Imports: config, core, core.wheel, errors.
# Never: trio, sqlite3, structlog, starlette, cyclopts.
