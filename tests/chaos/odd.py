"""Campaigns against brokers that are odd in some way: see ``odd_broker`` for which."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from chaos.volatile_disk import cut_power
from rocketpost.testing.campaign import Campaign

PROGRAM = str(Path(__file__).with_name("odd_broker.py"))


def odd_campaign(
    directory: Path,
    *,
    seed: int,
    flush: str,
    bug: str | None = None,
    loses_power: bool = False,
    sync_seconds: float = 0.0,
    full_every: int | None = None,
    large_share: float = 0.01,
    settings: Mapping[str, str] | None = None,
) -> Campaign:
    """Return a campaign; with ``loses_power`` each kill is a power cut."""
    store, mirror = directory / "store", directory / "mirror"
    program = [PROGRAM]
    if bug is not None:
        program += ["--bug", bug]
    if full_every is not None:
        program += ["--full-every", str(full_every)]
    if loses_power:
        program += ["--mirror", str(store), str(mirror), "--slow-sync", str(sync_seconds)]

    def cut(rng: random.Random) -> None:
        cut_power(store, mirror, rng)

    return Campaign(
        directory,
        seed=seed,
        settings={"flushDiskType": flush, **(settings or {})},
        large_share=large_share,
        program=[*program, "--"],
        on_killed=cut if loses_power else None,
    )
