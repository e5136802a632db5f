"""The command line: one file for each command."""

# Imports: bench, client, cluster, compare, compiled, config, conformance, console, core,
#   demo, errors, explanation, metrics, outlets.kafka, outlets.webhooks, service,
#   service.common, service.links, service.storage, text, traffic.
# Never: starlette, hypercorn, anyio.
