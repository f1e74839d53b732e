"""Popping in the server: held pops, the storing of changes, and the revival of messages."""
