"""Readers of the log that send its records elsewhere; each has a package of its own."""

# Imports: nothing.
# Never: starlette, hypercorn, cyclopts.
