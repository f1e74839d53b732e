"""Majorities of voters."""

from __future__ import annotations

from collections.abc import Callable, Collection

from rocketpost.raft.messages import NodeId


def majority(voters: Collection[NodeId]) -> int:
    """Return how many voters are a majority. Any two majorities have a voter in common."""
    return len(voters) // 2 + 1


def has_majority(voters: Collection[NodeId], chosen: Collection[NodeId]) -> bool:
    """Tell whether a majority of the voters is among ``chosen``; never without voters."""
    return bool(voters) and sum(voter in chosen for voter in voters) >= majority(voters)


def majority_position(voters: Collection[NodeId], position_of: Callable[[NodeId], int]) -> int:
    """Return the highest position that a majority of the voters has reached; 0 without voters."""
    if not voters:
        return 0
    reached = sorted([position_of(voter) for voter in voters])
    return reached[-majority(voters)]
