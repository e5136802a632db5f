"""The sockets of links: accepting, the credentials of peers, and writing."""

# Imports: config, core, core.links, core.wheel, core.wire, errors, metrics,
#   service.common, service.storage.
# Never: starlette, cyclopts.
