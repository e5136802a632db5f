"""Readers of the log that send its records elsewhere; each has a package of its own."""

# Imports: config, core, core.sessions, errors, metrics, service.common,
#   service.outlets.cluster, service.outlets.common, service.outlets.kafka,
#   service.outlets.webhooks, service.storage.
# Never: starlette, cyclopts.
