"""Links: accepts connections, answers hellos, keeps the names, sends what is due."""

# Imports: config, core, errors, metrics, service.common, service.storage.
# Never: starlette, hypercorn, cyclopts.
