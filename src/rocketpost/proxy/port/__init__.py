"""The gRPC port: plain connections and TLS at one address."""
