"""The way from the proxy to the brokers of a cluster: sockets, routes, leaders that change."""
