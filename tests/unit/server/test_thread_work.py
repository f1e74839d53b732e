"""Work in threads, whose callers may be cancelled."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rocketpost.server.thread_work import finish_in_thread
from rocketpost.testing.waiting import settle, until


async def test_the_result_or_the_error_is_that_of_the_function() -> None:
    assert await finish_in_thread(max, 1, 3) == 3
    with pytest.raises(ValueError, match="invalid literal"):
        await finish_in_thread(int, "x")


@pytest.mark.parametrize("fails", [True, False])
async def test_the_function_ends_before_a_cancelled_caller(fails: bool) -> None:
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert may_end.wait(30)
        ended.set()
        if fails:
            raise OSError("no room")

    task = asyncio.create_task(finish_in_thread(work))
    await until(begun.is_set)
    for _ in range(3):
        task.cancel()
        await settle()
        assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()
