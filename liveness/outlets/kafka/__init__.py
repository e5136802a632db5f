"""Sends records to a topic of Kafka."""

# Imports: config, core, errors, metrics, outlets.common, service.common, service.storage,
#   text.
# Never: starlette, hypercorn, cyclopts.
