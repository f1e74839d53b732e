"""Replication between a master and its slaves: connections, and the state that tools show."""
