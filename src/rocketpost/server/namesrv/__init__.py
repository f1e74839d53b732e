"""The name server process."""
