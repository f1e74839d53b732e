from __future__ import annotations

import click
import pytest

from rocketpost.admin.attribute_changes import (
    attribute_values,
    merge_attributes,
    parse_attributes,
    sign_attributes,
)
from rocketpost.admin.command import Failure


def test_changes_of_attributes_are_read() -> None:
    assert parse_attributes("") == {}
    assert parse_attributes("+a=b, -c ,+d=") == {"+a": "b", "-c": "", "+d": ""}


@pytest.mark.parametrize("text", ["a=b", "+a", "-a=b", "+=x", "-"])
def test_other_texts_are_no_changes_of_attributes(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"\+name=value"):
        parse_attributes(text)


def test_a_name_without_a_sign_is_set() -> None:
    assert sign_attributes({"a": "b", "+c": "d", "-e": ""}) == {"+a": "b", "+c": "d", "-e": ""}


def test_attributes_that_a_change_leaves_out_stay() -> None:
    present = {"kept": "1", "removed": "2", "changed": "3"}
    changes = {"-removed": "", "+changed": "4", "+new": "5"}
    after = merge_attributes("h:1", "topic T", present, changes)
    assert after == {"kept": "1", "changed": "4", "new": "5"}


def test_an_attribute_that_is_not_set_cannot_be_removed() -> None:
    with pytest.raises(Failure, match="h:1: the attribute a of the group G is not set"):
        merge_attributes("h:1", "group G", {}, {"-a": ""})


def test_a_removed_attribute_has_no_value() -> None:
    assert attribute_values({"a": "1", "b": "2"}, {"b": "3"}) == {"a": None, "b": "3"}
