"""Pulls: reads by queue offset, answered at once or held."""
