"""The command line: one file for each command."""

# Imports: client, cluster, compiled, config, console, core, core.links, core.sessions,
#   core.wheel, core.wire, errors, explanation, host_clock, lab.bench, lab.compare,
#   lab.conformance, lab.demo, metrics, outlets.kafka, outlets.webhooks, service,
#   service.common, service.storage, text.
# Never: starlette, hypercorn, anyio.
