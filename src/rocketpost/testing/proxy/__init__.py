"""Clients of the gRPC port for tests, and the load that they make."""
