from __future__ import annotations

import click
import pytest

from rocketpost.admin.commands.topic import parse_attributes


def test_changes_of_attributes_are_read() -> None:
    assert parse_attributes("") == {}
    assert parse_attributes("+a=b, -c ,+d=") == {"+a": "b", "-c": "", "+d": ""}


@pytest.mark.parametrize("text", ["a=b", "+a", "-a=b", "+=x", "-"])
def test_other_texts_are_no_changes_of_attributes(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"\+name=value"):
        parse_attributes(text)
