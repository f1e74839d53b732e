"""Connections over sockets. Commands stay opaque here."""
