from __future__ import annotations

import asyncio

from rocketpost.proxy.gathering import QUIET_TURNS, TEST_EVERY, TURNS_MAX, VAIN_MAX, Gathering


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_requests_that_come_one_by_one_go_together() -> None:
    gathering = Gathering()
    gone: list[int] = []

    async def ask(number: int) -> None:
        await gathering.wait()
        gone.append(number)

    tasks = []
    for number in range(4):
        tasks.append(asyncio.create_task(ask(number)))
        await turns(QUIET_TURNS - 2)
        assert gone == []
    await asyncio.gather(*tasks)
    assert gone == [0, 1, 2, 3]


async def test_a_wait_ends_though_requests_go_on_coming() -> None:
    gathering = Gathering()
    first = asyncio.create_task(gathering.wait())
    for _ in range(TURNS_MAX + 3):
        gathering.note_ready()
        await turns(1)
    assert first.done()


async def test_a_client_that_is_alone_hardly_ever_waits() -> None:
    gathering = Gathering()

    async def is_delayed() -> bool:
        task = asyncio.create_task(gathering.wait())
        await turns(2)
        delayed = not task.done()
        await task
        return delayed

    assert [await is_delayed() for _ in range(VAIN_MAX)] == [True] * VAIN_MAX
    later = [await is_delayed() for _ in range(4 * TEST_EVERY)]
    assert sum(later) == 4
    # Others that come during such a test bring the waits back.
    while not (task := asyncio.create_task(gathering.wait())).done():
        await turns(2)
        if not task.done():
            await asyncio.gather(task, gathering.wait())
            break
    assert await is_delayed()


async def test_one_caller_that_is_gone_does_not_end_the_wait_of_others() -> None:
    gathering = Gathering()
    first, second = (asyncio.create_task(gathering.wait()) for _ in range(2))
    await turns(1)
    first.cancel()
    await turns(2)
    assert first.cancelled()
    assert not second.done()
    await second
