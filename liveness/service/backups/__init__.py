"""Copies of the state directory, and checks of its files."""

# Imports: errors, service.storage, service.timers.
# Never: starlette, cyclopts.
