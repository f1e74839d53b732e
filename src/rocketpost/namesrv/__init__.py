"""Decisions of a name server. Nothing here waits: values in, values out."""
