"""A simulated world from a seed: for pure state machines, and for whole servers and clients."""
