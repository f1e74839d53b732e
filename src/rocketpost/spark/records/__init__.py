"""Decoding of records into Arrow arrays."""
