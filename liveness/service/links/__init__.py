"""The sockets of links: accepted, with their peers' credentials; what writes to them."""

# Imports: config, core, errors, metrics, service.common, service.storage.
# Never: starlette, hypercorn, cyclopts.
