"""The command line: a file for each command, with its declaration and its action."""

# Imports: bench, compare, compiled, config, console, core, demo, errors, explanation,
#   metrics, service, service.common, service.storage, text.
# Never: starlette, hypercorn, anyio.
