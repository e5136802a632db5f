"""HTTP: two listeners, their middleware and their routes."""

# Imports: cluster, config, core, core.sessions, core.wire, errors, metrics,
#   service.common, service.engine, service.links, service.outlets,
#   service.outlets.common, service.outlets.webhooks, service.storage, service.timers,
#   text.
# Never: cyclopts.
