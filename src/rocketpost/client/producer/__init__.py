"""Producers, and the path of a message to its broker."""
