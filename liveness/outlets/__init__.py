"""Readers of the log that send its records elsewhere; each has a package of its own."""

# Imports: config, errors, metrics, outlets.cluster, outlets.common, outlets.kafka,
#   outlets.webhooks, service.links.
# Never: starlette, hypercorn, cyclopts.
