"""Popping in the server: held pops, storage of changes, revival of messages."""
