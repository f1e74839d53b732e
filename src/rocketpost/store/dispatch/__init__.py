"""Dispatch of written messages to queues and key index, and the notices of their arrival."""
