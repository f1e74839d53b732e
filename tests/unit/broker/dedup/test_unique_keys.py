from __future__ import annotations

from rocketpost.broker.dedup.unique_keys import KeyWindow
from rocketpost.model.ids import Position, QueueOffset
from rocketpost.model.topic import TopicConfig
from rocketpost.store.draft import Appended
from rocketpost.testing.clock import FakeClock


def place(ms: int, position: int = 0) -> Appended:
    return Appended(Position(position), 10, QueueOffset(0), ms, "T", 0, 0, ("U",), None)


def window(clock: FakeClock, seconds: str = "10") -> KeyWindow:
    keys = KeyWindow(clock=clock)
    keys.watch("T", TopicConfig(topic_name="T", attributes={"dedup.seconds": seconds}))
    return keys


def test_it_is_off_until_a_topic_or_the_broker_asks(clock: FakeClock) -> None:
    keys = KeyWindow(clock=clock)
    assert not keys.is_on
    keys.configure(default_seconds=5, keys_max=10)
    assert keys.is_on
    assert keys.window_ms("any") == 5000
    keys.configure(default_seconds=0, keys_max=10)
    assert not keys.is_on
    keys.watch("T", TopicConfig(topic_name="T", attributes={"dedup.seconds": "7"}))
    assert keys.is_on
    assert (keys.window_ms("T"), keys.window_ms("U")) == (7000, 0)
    keys.watch("T", None)
    keys.watch("U", TopicConfig(topic_name="U", attributes={"dedup.seconds": "nonsense"}))
    assert not keys.is_on


def test_a_topic_may_switch_it_off_for_itself(clock: FakeClock) -> None:
    keys = window(clock, "0")
    keys.configure(default_seconds=60, keys_max=10)
    assert (keys.window_ms("T"), keys.window_ms("U")) == (0, 60_000)


def test_a_key_counts_for_its_window(clock: FakeClock) -> None:
    keys = window(clock)
    keys.take(("T", "k"), place(clock.now_ms()))
    assert keys.original(("T", "k")) is not None
    assert keys.original(("U", "k")) is None
    keys.commit()
    clock.advance(10_000)
    assert keys.original(("T", "k")) is not None
    clock.advance(1)
    assert keys.original(("T", "k")) is None


def test_a_key_that_could_not_be_written_is_forgotten(clock: FakeClock) -> None:
    keys = window(clock)
    keys.take(("T", "k"), place(clock.now_ms()))
    keys.undo()
    keys.commit()
    assert keys.original(("T", "k")) is None


def test_a_message_that_is_never_delivered_is_not_an_original(clock: FakeClock) -> None:
    keys = window(clock)
    for name in ("recalled", "kept"):
        keys.take(("T", name), place(clock.now_ms()))
    keys.forget(("T", "recalled"))
    keys.commit()
    assert keys.original(("T", "recalled")) is None
    assert keys.original(("T", "kept")) is not None
    keys.forget(("T", "kept"))
    keys.forget(("T", "never heard of"))
    assert keys.original(("T", "kept")) is None


def test_deleting_a_topic_forgets_its_keys(clock: FakeClock) -> None:
    keys = window(clock)
    keys.configure(default_seconds=10, keys_max=10)
    keys.fill({("T", "k"): place(clock.now_ms()), ("U", "k"): place(clock.now_ms())})
    keys.watch("T", None)
    assert keys.original(("T", "k")) is None
    assert keys.original(("U", "k")) is not None


def test_the_number_of_keys_is_bounded(clock: FakeClock) -> None:
    keys = window(clock)
    keys.configure(default_seconds=0, keys_max=2)
    for name in ("a", "b", "a", "c"):
        keys.take(("T", name), place(clock.now_ms()))
        keys.commit()
    assert [name for name in "abc" if keys.original(("T", name))] == ["a", "c"]
    clock.advance(10_001)
    keys.fill({("T", "d"): place(clock.now_ms())})
    assert len(keys) == 1
