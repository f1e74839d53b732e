"""Rows of Spark to messages."""
