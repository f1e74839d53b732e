"""The push consumer: handlers, workers, and the order of their calls."""
