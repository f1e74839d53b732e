"""JSON bodies of requests and responses, one module per request family."""
