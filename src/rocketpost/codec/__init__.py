"""Bytes to values and back. Pure: no sockets, files, clock or logs."""
