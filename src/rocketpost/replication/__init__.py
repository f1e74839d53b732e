"""Copies of a commit log on other brokers: the rules, without sockets, threads or clocks."""
