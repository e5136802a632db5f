"""liveness: who has gone silent? A connection-liveness sidecar for TCP gateways."""

__version__ = "0.1.0"
