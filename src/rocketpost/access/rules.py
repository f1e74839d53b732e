"""Rules: which actions on which resources a user is allowed or denied.

The text of a resource, and the requests that it matches:

    *                 everything
    Topic:*           every topic
    Topic:pre*        topics whose names begin with ``pre``
    Topic:name        the topic ``name``

The same holds for ``Group:`` and ``Cluster:``. ``Namespace:`` is accepted and matches nothing, as
in RocketMQ.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from rocketpost.access.info import AclInfo, EntryInfo, PolicyInfo
from rocketpost.access.words import EVERY, Action, Decision, Kind, PolicyType, find_word
from rocketpost.errors import NoPermission

ENTRIES_MAX: Final = 1000
"""Most rules of one user."""
_SOURCES_MAX: Final = 256
_RESOURCE_CHARS_MAX: Final = 512

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Match(IntEnum):
    """Way in which a resource's name is compared; a lower one is more specific."""

    LITERAL = 0
    PREFIXED = 1
    ANY = 2


@dataclass(frozen=True, slots=True)
class Resource:
    """The resources that a rule is for."""

    kind: Kind
    match: Match
    name: str = ""
    """The name, or its beginning."""

    def __str__(self) -> str:
        if self.kind is Kind.ANY:
            return EVERY
        star = "" if self.match is Match.LITERAL else EVERY
        return f"{self.kind.value}:{self.name}{star}"

    def covers(self, kind: Kind, name: str) -> bool:
        """Tell whether it includes the resource of a request; ``*`` as a name means all."""
        if self.kind is not Kind.ANY and self.kind is not kind:
            return False
        if self.match is Match.ANY:
            return True
        if name == EVERY:
            return False
        return name == self.name if self.match is Match.LITERAL else name.startswith(self.name)

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sort key: the more specific of two resources comes first."""
        return (self.kind is Kind.ANY, self.match, -len(self.name))


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a user."""

    resource: Resource
    actions: frozenset[Action]
    decision: Decision
    sources: tuple[Network, ...] = ()
    """Networks from which the rule holds; everywhere if there is none."""

    def __str__(self) -> str:
        actions = ",".join(action.value for action in Action if action in self.actions)
        sources = f" from {','.join(map(_network_text, self.sources))}" if self.sources else ""
        return f"{self.decision.value} {actions} on {self.resource}{sources}"

    def matches(
        self, kind: Kind, name: str, actions: Sequence[Action], source: Address | None
    ) -> bool:
        """Tell whether the rule decides a request that needs one of ``actions``."""
        if not self.resource.covers(kind, name):
            return False
        if Action.ALL not in self.actions and self.actions.isdisjoint(actions):
            return False
        if not self.sources:
            return True
        return source is not None and any(source in network for network in self.sources)


Policies = dict[PolicyType, tuple[Rule, ...]]
"""The rules of one user by type, most specific first."""


def parse_resource(text: str | None) -> Resource:
    """Read the text of a resource.

    Raises:
        NoPermission: It is not a resource. RocketMQ has the same code for it.
    """
    text = (text or "").strip()
    if text == EVERY:
        return Resource(Kind.ANY, Match.ANY)
    word, _, name = text.partition(":")
    kind = find_word(Kind, word)
    if kind is None or not name or len(text) > _RESOURCE_CHARS_MAX:
        raise NoPermission(
            f"The resource is null. {text[:99]!r} must be *, or Topic:, Group: or Cluster: and a "
            "name, which may end in *"
        )
    if kind is Kind.ANY:
        raise NoPermission(f"The resource {text[:99]!r} must be spelled * alone")
    beginning, star, rest = name.partition(EVERY)
    if rest:
        raise NoPermission(f"The resource {text[:99]!r} may have one *, at its end")
    if not star:
        return Resource(kind, Match.LITERAL, name)
    return Resource(kind, Match.PREFIXED if beginning else Match.ANY, beginning)


def parse_entry(info: EntryInfo) -> Rule:
    """Read one rule.

    Raises:
        NoPermission: A part of it is missing or unknown.
    """
    resource = parse_resource(info.resource)
    words = [(text, find_word(Action, text)) for text in info.actions or ()]
    if any((text or "").strip().lower() == "any" for text, _ in words):
        raise NoPermission("The actions can not be Any. Use All, or name the actions")
    unknown = [text for text, word in words if word is None]
    if unknown or not words:
        known = ", ".join(action.value for action in Action)
        given = f"{unknown[0]!r} is unknown" if unknown else "none is given"
        raise NoPermission(f"The actions is empty. {given}; the actions are {known}")
    decision = find_word(Decision, info.decision)
    if decision is None:
        raise NoPermission("The decision is null or illegal. It must be Allow or Deny")
    actions = frozenset(word for _, word in words if word is not None)
    return Rule(resource, actions, decision, parse_sources(info.source_ips or ()))


def parse_sources(texts: Iterable[str]) -> tuple[Network, ...]:
    """Read addresses and networks.

    Raises:
        NoPermission: One of them is neither.
    """
    networks = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text.strip(), strict=False))
        except ValueError:
            raise NoPermission(
                f"The source ip is invalid. {text[:99]!r} is neither an address nor a network "
                "such as 10.0.0.0/8"
            ) from None
    if len(networks) > _SOURCES_MAX:
        raise NoPermission(f"A rule may have {_SOURCES_MAX} source networks at most")
    return tuple(dict.fromkeys(networks))


def parse_source(host: str) -> Address | None:
    """Return the address of a peer, an IPv4 address also if it is written as IPv6."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if mapped is not None else address


def parse_policies(info: AclInfo) -> Policies:
    """Read the rules of a request.

    Raises:
        NoPermission: There is none, or one is malformed.
    """
    policies: Policies = {}
    for policy in info.policies or ():
        word = policy.policy_type
        kind = PolicyType.CUSTOM if not word else find_word(PolicyType, word)
        if kind is None:
            raise NoPermission(f"The policy type {word!r} is unknown: it is Custom or Default")
        rules = [parse_entry(entry) for entry in policy.entries or ()]
        policies[kind] = sort_rules([*policies.get(kind, ()), *rules])
    if not any(policies.values()):
        raise NoPermission("The policy entries is empty.")
    check_count(policies)
    return policies


def merge(before: Policies, more: Policies) -> Policies:
    """Return rules in which those of ``more`` replace the rules for the same resources.

    Raises:
        NoPermission: There would be too many.
    """
    merged = dict(before)
    for kind, rules in more.items():
        replaced = {rule.resource for rule in rules}
        kept = [rule for rule in before.get(kind, ()) if rule.resource not in replaced]
        merged[kind] = sort_rules([*kept, *rules])
    check_count(merged)
    return merged


def without(before: Policies, kind: PolicyType, resource: Resource) -> Policies:
    """Return rules without those of one type for a resource."""
    kept = tuple(rule for rule in before.get(kind, ()) if rule.resource != resource)
    after = {**before, kind: kept}
    return {kind: rules for kind, rules in after.items() if rules}


def check_count(policies: Policies) -> None:
    """Refuse more rules than one user may have."""
    if sum(map(len, policies.values())) > ENTRIES_MAX:
        raise NoPermission(f"A user may have {ENTRIES_MAX} rules at most; use prefixes")


def sort_rules(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return rules in the order in which they decide: of equal ones, Deny comes first."""
    return tuple(
        sorted(rules, key=lambda rule: (rule.resource.rank, rule.decision is Decision.ALLOW))
    )


def acl_info(subject: str, policies: Policies) -> AclInfo:
    """Return the rules of a user as tools show them."""
    return AclInfo(
        subject=subject,
        policies=[
            PolicyInfo(policy_type=kind.value, entries=[_entry_info(rule) for rule in rules])
            for kind, rules in sorted(policies.items(), key=lambda item: item[0].value)
        ],
    )


def _entry_info(rule: Rule) -> EntryInfo:
    return EntryInfo(
        resource=str(rule.resource),
        actions=[action.value for action in Action if action in rule.actions],
        source_ips=[_network_text(network) for network in rule.sources] or None,
        decision=rule.decision.value,
    )


def _network_text(network: Network) -> str:
    is_host = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if is_host else str(network)
