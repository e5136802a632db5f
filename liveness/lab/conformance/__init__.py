"""Plays situations to a gateway in any language, and judges the rules of the protocol.

The sidecar is the product's own server behind a script (`liveness.testing`). The gateway
is the author's: a process that connects to it. Users are TCP connections that speak the
line protocol of the demo's gateway.
"""

# Imports: config, console, core, core.wire, errors, lab.common, testing, text.
# Never: sqlite3, starlette, structlog.
