"""Deduplication: messages of idempotent producers are stored once."""
