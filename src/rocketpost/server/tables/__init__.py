"""The tables under ``config/``: their registry, loading and saving."""
