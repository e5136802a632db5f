"""Copies of the state directory, and checks of one that stands still."""

# Imports: core, errors, service.storage.
# Never: starlette, hypercorn, cyclopts.
