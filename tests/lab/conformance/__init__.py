"""Tests of `liveness conformance`."""
