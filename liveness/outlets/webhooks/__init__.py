"""Posts records to HTTP receivers, signed, in order, and tries again."""

# Imports: config, metrics, outlets.common.
# Never: starlette, hypercorn, cyclopts.
