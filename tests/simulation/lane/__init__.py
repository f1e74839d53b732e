"""Sends of a broker with and without the send lane."""
