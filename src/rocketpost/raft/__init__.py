"""Raft over positions of a log: a pure state machine; :mod:`rocketpost.raft.node` is its face."""
