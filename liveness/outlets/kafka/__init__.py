"""Sends records to a topic of Kafka."""

# Imports: config, metrics, outlets.common.
# Never: starlette, hypercorn, cyclopts.
