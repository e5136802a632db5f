"""Sends records to a topic of Kafka."""

# Imports: config, core, errors, service.common, service.outlets.common, service.storage,
#   text.
# Never: starlette, cyclopts.
