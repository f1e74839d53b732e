"""Decisions: whether a user may do something, and the rule that decides.

A super user may do everything. For others, the most specific matching rule decides: a rule for the
kind of resource before one for everything, a name before a prefix, a longer prefix before a shorter
one, and of equal ones Deny. Custom rules come before default rules. Without a matching rule the
request is denied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rocketpost.access.rules import Address, Policies, Rule
from rocketpost.access.users import User
from rocketpost.access.words import Action, Decision, Kind, PolicyType, UserType


class Verdict(NamedTuple):
    """A decision, and the rule that made it."""

    is_allowed: bool
    reason: str
    rule: Rule | None = None
    policy: PolicyType | None = None


def decide(
    user: User,
    policies: Policies,
    *,
    kind: Kind,
    name: str,
    actions: Sequence[Action],
    source: Address | None,
) -> Verdict:
    """Decide whether a user may take one of ``actions`` on a resource.

    Args:
        user: The user.
        policies: The user's rules.
        kind: The kind of the resource.
        name: Its name; ``*`` for all of that kind at once.
        actions: The actions of which one is needed.
        source: The address from which the request came; None if it is not known.
    """
    if not user.is_enabled:
        return Verdict(False, f"the user {user.name} is disabled")
    if user.type is UserType.SUPER:
        return Verdict(True, f"{user.name} is a super user")
    for policy in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        for rule in policies.get(policy, ()):
            if rule.matches(kind, name, actions, source):
                is_allowed = rule.decision is Decision.ALLOW
                return Verdict(is_allowed, f"{policy.value} rule: {rule}", rule, policy)
    return Verdict(False, "no rule matches")
