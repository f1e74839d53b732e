"""Metrics of a broker and its health, for Prometheus and for orchestrators."""
