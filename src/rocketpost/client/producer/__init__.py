"""Producers, and the parts that send their messages."""
