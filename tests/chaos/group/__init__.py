"""Campaigns against a group of real broker processes, each in a network namespace of its own."""
