"""The engine: runs the core's server on sockets, clock and disk."""

# Imports: core, errors, metrics, service.common, service.links, service.storage.
# Never: starlette, hypercorn, cyclopts.
