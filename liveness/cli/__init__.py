"""The command line: one file for each command."""

# Imports: client, cluster, compiled, config, console, core, errors, explanation,
#   lab.bench, lab.compare, lab.conformance, lab.demo, metrics, outlets.kafka,
#   outlets.webhooks, service, service.common, service.links, service.storage, text,
#   traffic.
# Never: starlette, hypercorn, anyio.
