"""Consume queues: their files, and the table of all of them."""
