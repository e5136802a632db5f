"""The metrics: plain counters and histograms, and Prometheus families made of them.

The number of series does not depend on the number of users: only the label `gateway`
grows, and it is capped.
"""

# Imports: errors.
# Never: trio, anyio, sqlite3, structlog.
