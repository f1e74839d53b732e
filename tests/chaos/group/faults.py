"""The kinds of faults of a campaign. Each does something bad to the group, and undoes it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Final

from chaos.group import damage, partitions
from chaos.group.campaign import WRITABLE_SECONDS_MAX, FaultKind, Scene
from chaos.group.members import HOSTS, NODES, Member, NotUp

_CUT_SECONDS: Final = (0.6, 2.2)
_FLAP_SECONDS: Final = (0.05, 0.5)
_DOWN_SECONDS: Final = (0.0, 0.6)


# -- partitions


def _partition(kind: Callable[..., list[partitions.Cuts]]) -> FaultKind:
    @wraps(kind)
    async def fault(scene: Scene) -> None:
        steps = kind(await scene.leader(), scene.rng)
        bounds = _CUT_SECONDS if len(steps) == 1 else _FLAP_SECONDS
        try:
            for cuts in steps:
                await scene.members.cut(cuts)
                await asyncio.sleep(scene.rng.uniform(*bounds))
        finally:
            await scene.members.cut(())
        scene.report.events["cut"] += sum(bool(cuts) for cuts in steps)

    return fault


PARTITIONS: Final = tuple(_partition(kind) for kind in partitions.KINDS)


# -- kills


async def _kill(scene: Scene, victims: Sequence[Member]) -> None:
    """Kill members, in half of the cases wait until the others go on, and start them again."""
    rng = scene.rng
    for victim in victims:
        await victim.kill()
        scene.report.events["kill"] += 1
        if rng.random() < 0.3:
            await asyncio.sleep(rng.uniform(0, 0.2))
    if len(victims) == 1 and rng.random() < 0.5:
        await scene.load.until_acknowledged(scene.members.serving, seconds=WRITABLE_SECONDS_MAX)
    else:
        await asyncio.sleep(rng.uniform(*_DOWN_SECONDS))
    await scene.members.start()


def _chosen(scene: Scene, count: int) -> list[Member]:
    return scene.rng.sample(scene.members.all, count)


async def kill_leader(scene: Scene) -> None:
    """Kill the leader."""
    await _kill(scene, [scene.members.by_name[await scene.leader()]])


async def kill_any(scene: Scene) -> None:
    """Kill any member."""
    await _kill(scene, _chosen(scene, 1))


async def kill_majority(scene: Scene) -> None:
    """Kill two of three."""
    await _kill(scene, _chosen(scene, 2))


async def kill_all(scene: Scene) -> None:
    """Kill all members."""
    await _kill(scene, _chosen(scene, len(NODES)))


KILLS: Final = (kill_leader, kill_any, kill_majority, kill_all)


# -- freezes


async def freeze_leader(scene: Scene) -> None:
    """Freeze the leader until another one has taken messages, then let it go on."""
    leader = scene.members.by_name[await scene.leader()]
    leader.freeze()
    try:
        await scene.load.until_acknowledged(scene.members.serving, seconds=WRITABLE_SECONDS_MAX)
        await asyncio.sleep(scene.rng.uniform(0, 0.5))
    finally:
        leader.thaw()
    scene.report.events["freeze"] += 1


# -- power


async def _cut_power(scene: Scene, victims: Sequence[Member]) -> None:
    """Have machines vanish from the network at once, with everything that was not synced."""
    names = [victim.node for victim in victims]
    cuts = {(a, b) for a in HOSTS for b in HOSTS if a != b and (a in names or b in names)}
    await scene.members.cut(cuts)
    await asyncio.gather(*(victim.kill() for victim in victims))
    for victim in victims:
        await asyncio.to_thread(victim.forget_unsynced_blocking, scene.rng)
        scene.report.events["power cut"] += 1
    await scene.members.cut(())


async def cut_power_of_all(scene: Scene) -> None:
    """All machines lose power in the same moment."""
    await _cut_power(scene, scene.members.all)
    await scene.members.start()


async def pause_kill(scene: Scene) -> None:
    """A minority sleeps through acknowledged messages, then must do without one that has them.

    A follower is frozen; the other two take messages. One of these two loses power, the other one
    is frozen, and the first follower goes on. When the lost member is back, it and that follower
    are a majority.
    """
    members, rng = scene.members, scene.rng
    await scene.checks.check_leader()
    leader = members.by_name[await scene.leader()]
    asleep, awake = rng.sample([each for each in members.all if each is not leader], 2)
    asleep.freeze()
    try:
        await scene.load.until_acknowledged(members.serving, seconds=WRITABLE_SECONDS_MAX)
        await asyncio.sleep(rng.uniform(0.1, 0.6))
        lost, rest = rng.sample([leader, awake], 2)
        await _cut_power(scene, [lost])
        rest.freeze()
        asleep.thaw()
        await members.start([lost])
        await scene.load.until_acknowledged(members.serving, seconds=WRITABLE_SECONDS_MAX)
    finally:
        for member in members.all:
            if member.is_frozen:
                member.thaw()
    scene.report.events["freeze"] += 2


POWER: Final = (cut_power_of_all, pause_kill)


# -- damage


def _damage(kind: Callable[..., str]) -> FaultKind:
    @wraps(kind)
    async def fault(scene: Scene) -> None:
        rng = scene.rng
        victim = rng.choice(scene.members.all)
        old = victim.home / "old"
        if not old.exists():
            await _keep_copy(victim)
        if rng.random() < 0.5:
            await victim.kill()
        else:
            await victim.stop()
        await asyncio.sleep(rng.uniform(*_DOWN_SECONDS))
        done = await asyncio.to_thread(kind, victim.store, old, rng)
        scene.report.events["damage"] += 1
        await _come_back(scene, victim, done)
        if rng.random() < 0.3:
            # The others may be no majority until it is back: a suspect member does not vote.
            await scene.members.by_name[await scene.leader()].kill()
            scene.report.events["kill"] += 1
            await scene.members.start()
        await _until_repaired(scene, done)
        if rng.random() < 0.3:
            shutil.rmtree(old)  # the next copy is newer

    return fault


async def _keep_copy(member: Member) -> None:
    """Keep a copy of a member's files, as a backup of a stopped member would."""
    await member.stop()
    await asyncio.to_thread(shutil.copytree, member.store, member.home / "old")
    await member.launch()
    await member.wait_up()


async def _come_back(scene: Scene, victim: Member, done: str) -> None:
    """Start a damaged member; if it refuses, replace its disk as the guide says."""
    await victim.launch()
    try:
        await victim.wait_up()
    except NotUp as error:
        print(f"{victim.node} does not start: {done}\n{str(error)[-1500:]}")
        scene.report.events["refused to start"] += 1
        await victim.kill()
        shutil.rmtree(victim.store)
        await scene.members.start([victim])


async def _until_repaired(scene: Scene, done: str) -> None:
    """Wait until no member is suspect, and all have the same log up to what is committed now."""
    position = max(status.committed for status in await scene.members.statuses())
    try:
        async with asyncio.timeout(60):
            while True:
                statuses = await scene.members.statuses()
                if len(statuses) == len(NODES) and all(
                    not each.is_suspect and not each.failure and each.committed >= position
                    for each in statuses
                ):
                    break
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise TimeoutError(f"not repaired after {done}: {statuses}") from None
    await scene.checks.until_equal_logs()


DAMAGES: Final = tuple(_damage(kind) for kind in damage.KINDS)
