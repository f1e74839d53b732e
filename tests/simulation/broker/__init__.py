"""Whole parts of a broker on a simulated disk."""
