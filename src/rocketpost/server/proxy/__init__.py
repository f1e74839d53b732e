"""The gRPC port of a broker, and the command that serves it for a cluster."""
