"""A broker as a client of name servers: registration, routes of topics."""
