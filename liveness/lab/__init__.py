"""Programs around the sidecar, which show, measure and check it; never part of it.

`demo` shows a sidecar with users, and kills it; `bench` measures it; `conformance` tries
gateways of any language; `compare` matches its offlines with those of another detector.
Code that two of them share is in `common`. Only commands import this folder.
"""

# Imports: nothing.
# Never: trio, anyio, sqlite3, starlette, structlog.
