"""Timers on disk: their table, its writer and readers, and what fires those that are due."""

# Imports: core, core.links, core.sessions, core.timers, metrics, service.common,
#   service.storage.
# Never: starlette, cyclopts.
