"""Typed header fields of requests and responses, one module per request family."""
