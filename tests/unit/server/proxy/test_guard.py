from __future__ import annotations

import hashlib
import hmac

import pytest

from rocketpost.server.proxy.guard import read_signature

DATE = "20261118T060302Z"
DIGEST = hmac.new(b"secret", DATE.encode(), hashlib.sha1).hexdigest()


def headers(text: str, date: str = DATE) -> dict[str, str]:
    return {"authorization": text, "x-mq-date-time": date}


@pytest.mark.parametrize(
    "text",
    [
        f"MQv2-HMAC-SHA1 Credential=user, SignedHeaders=x-mq-date-time, Signature={DIGEST}",
        f"MQv2-HMAC-SHA1 Credential=user//Rocketmq, Signature={DIGEST.upper()}",
        f"MQv2-HMAC-SHA1 Credential=user,SignedHeaders=x,Signature={DIGEST}",
    ],
)
def test_the_forms_of_all_clients_are_read(text: str) -> None:
    signature = read_signature(headers(text))
    assert signature is not None
    assert signature.user == "user"
    assert signature.is_made_with(b"secret")
    assert not signature.is_made_with(b"other")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "x Credential=user",
        f"x Credential=, Signature={DIGEST}",
        "x Credential=u, Signature=zz",
    ],
)
def test_other_texts_are_no_signature(text: str) -> None:
    assert read_signature(headers(text)) is None
    assert read_signature(headers(f"x Credential=u, Signature={DIGEST}", date="")) is None
