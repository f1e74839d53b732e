"""Popping: messages handed out one by one, to whoever asks."""
