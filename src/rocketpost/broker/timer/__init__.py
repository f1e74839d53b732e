"""Timed messages: admitted, kept in the wheel, delivered when due."""
