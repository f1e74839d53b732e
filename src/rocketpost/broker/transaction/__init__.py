"""Transactions: half messages, their ends, and checks with producers."""
