"""Consumers: pull, lite pull and simple, and the parts that all consumers share."""
