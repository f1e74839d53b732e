"""Request handlers: decode, ask a service, encode."""
