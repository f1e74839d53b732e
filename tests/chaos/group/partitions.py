"""Ways to cut a network of three members, clients and a name server."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from typing import Final

from chaos.group.members import CLIENTS, HOSTS, NAMES, NODES
from chaos.group.network import Cut

Cuts = set[Cut]


def between(one: Collection[str], other: Collection[str]) -> Cuts:
    """Return the cuts that separate hosts in both directions."""
    return {(a, b) for a in one for b in other} | {(b, a) for a in one for b in other}


def halves(leader: str, rng: random.Random) -> list[Cuts]:
    """One member against two; clients and name server reach one side, or both."""
    alone = rng.choice([leader, rng.choice(NODES)])
    others = [node for node in NODES if node != alone]
    far = rng.choice([[alone], others, []])
    return [between([alone], others) | between(far, [CLIENTS, NAMES])]


def single(leader: str, rng: random.Random) -> list[Cuts]:
    """One member loses everybody."""
    alone = rng.choice([leader, rng.choice(NODES)])
    return [between([alone], [host for host in HOSTS if host != alone])]


def ring(leader: str, rng: random.Random) -> list[Cuts]:
    """Every member is heard by one other member, and hears another one."""
    order = list(NODES)
    rng.shuffle(order)
    return [{(order[at], order[at - 1]) for at in range(len(order))}]


def bridge(leader: str, rng: random.Random) -> list[Cuts]:
    """Two members reach the third, but not each other."""
    one, other = rng.sample(NODES, 2)
    return [between([one], [other])]


def one_way(leader: str, rng: random.Random) -> list[Cuts]:
    """A member hears others who do not hear it, or is heard and hears nothing."""
    member = rng.choice([leader, rng.choice(NODES)])
    others = [node for node in NODES if node != member]
    some = rng.choice([others, others[:1], others[1:]])
    cuts = {(member, other) for other in some}
    return [cuts if rng.random() < 0.5 else {(b, a) for a, b in cuts}]


def flapping(leader: str, rng: random.Random) -> list[Cuts]:
    """A cut that comes and goes."""
    steps: list[Cuts] = []
    for _ in range(rng.randrange(3, 7)):
        kind = rng.choice([halves, single, bridge, one_way])
        steps += [*kind(leader, rng), set()]
    return steps


KINDS: Final[tuple[Callable[[str, random.Random], list[Cuts]], ...]] = (
    halves,
    single,
    ring,
    bridge,
    one_way,
    flapping,
)
"""Each returns cuts that follow one another, by the name of the leader."""
