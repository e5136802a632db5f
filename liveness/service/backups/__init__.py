"""Copies of the state directory, and checks of one that stands still."""

# Imports: core, errors, service.storage, service.timers.
# Never: starlette, hypercorn, cyclopts.
