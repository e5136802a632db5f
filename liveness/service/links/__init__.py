"""The sockets of links: accepted, with their peers' credentials; what writes to them."""

# Imports: config, core, core.links, core.wheel, core.wire, errors, metrics,
#   service.common, service.storage.
# Never: starlette, hypercorn, cyclopts.
