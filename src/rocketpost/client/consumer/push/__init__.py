"""The push consumer: handlers, their workers, and the outcomes of messages."""
