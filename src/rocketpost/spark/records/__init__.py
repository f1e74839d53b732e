"""Records to Arrow."""
