"""HTTP: two listeners, middleware, and what each route answers."""

# Imports: cluster, config, core, core.sessions, core.wire, errors, explanation, metrics,
#   service.common, service.engine, service.links, service.outlets.webhooks,
#   service.storage, service.timers, text.
# Never: cyclopts.
