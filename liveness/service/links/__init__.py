"""The sockets of gateways and watchers: accepting, handshake, names, outboxes."""

# Imports: config, core, errors, metrics, service.common, service.storage.
# Never: starlette, hypercorn, cyclopts.
