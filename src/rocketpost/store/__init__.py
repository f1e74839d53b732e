"""The message store: files only, no network."""
