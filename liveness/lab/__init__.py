"""What surrounds the sidecar: it shows, measures and judges, and is never part of it.

`demo` shows a sidecar with users, and kills it; `bench` measures it; `conformance` tries
gateways of any language; `compare` matches its offlines with those of another detector.
What two of them need stands once, in `common`. Only commands import this wing.
"""

# Imports: nothing.
# Never: trio, anyio, sqlite3, starlette, structlog.
