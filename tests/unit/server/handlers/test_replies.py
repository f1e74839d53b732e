from __future__ import annotations

import pytest

from rocketpost.codec.faults import ServerError
from rocketpost.server.handlers.replies import BODY_BYTES_MAX, json_reply


def test_an_answer_that_fits_no_frame_is_refused() -> None:
    assert json_reply(b"x" * BODY_BYTES_MAX).body
    with pytest.raises(ServerError, match="more than fit"):
        json_reply(b"x" * (BODY_BYTES_MAX + 1))
