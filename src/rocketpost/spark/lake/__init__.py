"""Lakes of archived messages."""
