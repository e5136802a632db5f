"""The engine, which owns the core's state: reads links, fires what is due, commits."""

# Imports: core, metrics, service.common, service.links,
#   service.storage.
# Never: starlette, hypercorn, cyclopts.
