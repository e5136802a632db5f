"""Presence across hosts, as it is kept on Redis: its format, its functions, and its readers.

Imports `core` and `config`, and coredis only in `connection`: whoever does not configure a
cluster does not need it.
"""
