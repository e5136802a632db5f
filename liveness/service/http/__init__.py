"""HTTP: two listeners, middleware, and what each route answers."""

# Imports: cluster, config, core, core.sessions, core.wire, errors, explanation, metrics,
#   outlets.webhooks, service.common, service.engine, service.links, service.storage,
#   text.
# Never: cyclopts.
