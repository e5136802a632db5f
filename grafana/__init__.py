"""The Grafana dashboard, and the few lines that build it."""
