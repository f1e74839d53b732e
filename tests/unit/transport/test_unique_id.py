from __future__ import annotations

import os
import re

from rocketpost.transport.unique_id import unique_id


def test_ids_look_like_javas_and_never_repeat() -> None:
    ids = [unique_id() for _ in range(10_000)]
    assert len(set(ids)) == 10_000
    assert re.fullmatch(r"[0-9A-F]{32}", ids[0])
    assert int(ids[0][8:12], 16) == os.getpid() & 0xFFFF


def test_a_forked_child_makes_ids_of_its_own() -> None:
    mine = unique_id()
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        os.write(write_end, unique_id().encode())
        os._exit(0)
    os.close(write_end)
    theirs = os.read(read_end, 100).decode()
    os.close(read_end)
    os.waitpid(child, 0)
    assert theirs[:20] != mine[:20]  # address, process and the drawn part
    assert unique_id()[:20] == mine[:20]
