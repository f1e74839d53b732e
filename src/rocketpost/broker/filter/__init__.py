"""Filters of consumers that need more than tags."""
