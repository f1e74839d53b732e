"""Popping: messages handed out one by one, to any client that requests some."""
