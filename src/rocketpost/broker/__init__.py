"""Decisions of a broker. No waiting: values in, values out, the clock is a parameter."""
