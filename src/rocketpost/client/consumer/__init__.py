"""Consumers: pull, lite pull and simple, and the shared parts of all of them."""
