"""Popping as the server does it: who waits, what is stored, what comes again."""
