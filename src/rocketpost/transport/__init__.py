"""Connections: sockets and nothing else."""
