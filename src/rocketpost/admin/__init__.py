"""The mqadmin commands."""
