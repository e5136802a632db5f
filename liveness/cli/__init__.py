"""The command line: one file for each command."""

# Imports: client, cluster, config, console, core, core.links, core.sessions, core.wire,
#   errors, host_clock, lab.bench, lab.compare, lab.conformance, lab.demo, metrics,
#   service, service.backups, service.common, service.outlets.kafka,
#   service.outlets.webhooks, service.storage, text.
# Never: starlette, anyio.
