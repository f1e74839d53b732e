"""Certificates and connections in memory, for tests of TLS."""
