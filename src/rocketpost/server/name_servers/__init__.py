"""A broker's dealings with name servers: registration, routes of others."""
