"""Posts records to HTTP receivers, signed, in order, and tries again.

`cloud_events` and `address_check` are pure; `sender` makes one attempt; `batch_store` keeps
unfinished requests and dead letters.
"""

# Imports: config, core, errors, service.common, service.outlets.common, text.
# Never: starlette, cyclopts.
