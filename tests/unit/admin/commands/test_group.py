from __future__ import annotations

import click
import pytest

from rocketpost.admin.commands.group import config_text, parse_policy
from rocketpost.model.group import GroupConfig


def test_a_configuration_is_shown_as_by_the_original() -> None:
    lines = config_text("DefaultCluster:broker-a", GroupConfig(group_name="demo")).splitlines()
    assert lines[0] == (
        "=============================DefaultCluster:broker-a============================="
    )
    assert lines[1] == "groupName                               =  demo"
    assert lines[8] == (
        "groupRetryPolicy                        =  GroupRetryPolicy{type=CUSTOMIZED, "
        "exponentialRetryPolicy=null, customizedRetryPolicy=null}"
    )
    assert lines[-2] == "subscriptionDataSet                     =  "
    assert lines[-1] == "attributes                              =  {}"


def test_a_policy_is_read_if_there_is_one() -> None:
    assert parse_policy(None) is None
    policy = parse_policy('{"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,5000]}}')
    assert policy is not None
    config = GroupConfig(group_name="g", group_retry_policy=policy)
    assert 'customizedRetryPolicy={"next":[1000,5000]}' in config_text("x", config)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"type":"NEVER"}'])
def test_invalid_policies_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        parse_policy(text)
