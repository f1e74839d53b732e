"""Sends of one connection keep their order while leaders change."""

from __future__ import annotations

import asyncio
import random

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.command import Command
from rocketpost.server.group.serving.send_line import Passage, SendLine, Stage


def joined(line: SendLine, count: int) -> list[Passage]:
    return [line.join(Command(RequestCode.SEND_MESSAGE_V2, opaque=at)) for at in range(count)]


def test_a_send_goes_out_when_all_earlier_ones_are_out() -> None:
    line = SendLine()
    first, second, third = joined(line, 3)
    assert [line.is_next(each) for each in (first, second, third)] == [True, False, False]
    line.note_sent(first)
    assert line.is_next(second)
    line.note_sent(second)
    line.note_answer(first, is_refused=False)
    assert line.is_next(third)


def test_refused_sends_go_out_again_when_all_after_them_were_refused() -> None:
    line = SendLine()
    first, second, third = joined(line, 3)
    line.note_sent(first)
    line.note_sent(second)
    line.note_answer(first, is_refused=True)
    assert not line.is_next(third)
    assert first.stage is Stage.REFUSED
    line.note_answer(second, is_refused=True)
    assert [each.stage for each in (first, second)] == [Stage.WAITING, Stage.WAITING]
    assert line.is_next(first)
    line.note_sent(first)
    assert line.is_next(second)
    assert not line.is_next(third)


def test_a_refusal_stands_if_a_later_send_was_stored() -> None:
    line = SendLine()
    first, second, third = joined(line, 3)
    line.note_sent(first)
    line.note_sent(second)
    line.note_answer(first, is_refused=True)
    line.note_answer(second, is_refused=False)
    assert first.stage is Stage.DONE
    assert line.is_next(third)


def test_one_that_leaves_lets_the_next_one_go() -> None:
    line = SendLine()
    first, second, third = joined(line, 3)
    line.leave(first)
    assert line.is_next(second)
    line.note_sent(second)
    line.leave(second)
    assert line.is_next(third)
    line.leave(third)
    line.leave(third)
    assert line.is_empty


def test_what_waits_is_taken_in_order_by_a_broker_that_leads() -> None:
    line = SendLine()
    passages = joined(line, 4)
    line.note_sent(passages[0])
    line.note_sent(passages[1])
    line.note_answer(passages[0], is_refused=True)
    taken = line.take_waiting()
    assert [command.opaque for command in taken] == [2, 3]
    assert [each.stage for each in passages] == [
        Stage.DONE, Stage.SENT, Stage.SERVED, Stage.SERVED
    ]  # fmt: skip
    line.note_answer(passages[1], is_refused=True)
    assert passages[1].stage is Stage.DONE
    assert line.is_empty


async def test_a_waiting_send_is_woken() -> None:
    line = SendLine()
    first, second = joined(line, 2)
    waiting = asyncio.ensure_future(second.wait())
    await asyncio.sleep(0)
    line.note_sent(first)
    await waiting
    await second.wait(asyncio.get_running_loop().time() - 1)  # the time is over


def test_random_answers_never_change_the_order() -> None:
    for seed in range(40):
        rng = random.Random(seed)
        line, stored = SendLine(), []
        passages: list[Passage] = []
        for opaque in range(200):
            if rng.random() < 0.4:
                passages.append(line.join(Command(RequestCode.SEND_MESSAGE_V2, opaque=opaque)))
            for each in passages:
                if line.is_next(each) and rng.random() < 0.7:
                    line.note_sent(each)
                    # The leader decides when it comes; the answers come in any order.
                    each.command.flag = rng.choice((0, 0, 1))
                    if not each.command.flag:
                        stored.append(each.command.opaque)
            out = [each for each in passages if each.stage is Stage.SENT]
            if out and rng.random() < 0.7:
                each = rng.choice(out)
                line.note_answer(each, is_refused=bool(each.command.flag))
            if rng.random() < 0.02:
                stored += [command.opaque for command in line.take_waiting()]
        assert stored == sorted(set(stored))
