"""TLS and logins at the ports by which brokers copy their log: HA ports and group ports."""
