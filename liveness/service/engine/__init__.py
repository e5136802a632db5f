"""The engine: runs the core's server on sockets, clock and disk."""

# Imports: cluster, core, core.links, core.sessions, errors, service.common,
#   service.links, service.storage, service.timers.
# Never: starlette, cyclopts.
