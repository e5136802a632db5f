"""Restored sessions, compiled; `restart.SessionRestorer` documents it."""

from liveness.core.wheel.restart import SessionRestorer as SessionRestorer
