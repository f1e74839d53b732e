"""A simulated world for pure state machines: virtual time and a faulty network, from a seed."""
