"""The proxy's connections to the brokers of a cluster: sockets, routes, leaders that change."""
