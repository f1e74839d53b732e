"""Pipelines: jobs over many messages, each with a function and a command."""
