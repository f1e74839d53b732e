"""The commit log: segments, appends, flushes."""
