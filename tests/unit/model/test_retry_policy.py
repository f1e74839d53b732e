from __future__ import annotations

from typing import Any

import pytest

from rocketpost.errors import ConfigError
from rocketpost.model.retry_policy import RetryPolicy, read_retry_policy


@pytest.mark.parametrize("policy", [{}, {"type": "CUSTOMIZED"}])
def test_the_usual_policy_is_that_of_the_delay_levels(policy: dict[str, Any]) -> None:
    assert read_retry_policy(policy) is None


def test_listed_waits_end_with_the_last() -> None:
    policy = read_retry_policy(
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1000, 5000, 60_000]}}
    )
    assert policy is not None
    assert [policy.delay_ms(times) for times in range(5)] == [1000, 5000, 60_000, 60_000, 60_000]


def test_growing_waits_end_at_their_bound() -> None:
    policy = read_retry_policy(
        {
            "type": "EXPONENTIAL",
            "exponentialRetryPolicy": {"initial": 100, "max": 2500, "multiplier": 3},
        }
    )
    assert policy is not None
    assert [policy.delay_ms(times) for times in (0, 1, 2, 3, 99)] == [100, 300, 900, 2500, 2500]
    usual = read_retry_policy({"type": "EXPONENTIAL", "exponentialRetryPolicy": None})
    assert usual == RetryPolicy((), 5000, 7_200_000, 2)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"type": "NEVER"}, "CUSTOMIZED or EXPONENTIAL"),
        ({"type": []}, "CUSTOMIZED or EXPONENTIAL"),
        ({"next": [1]}, "'next' is unknown"),
        ({"customizedRetryPolicy": {"next": []}}, "a list of times"),
        ({"customizedRetryPolicy": {"next": 7}}, "a list of times"),
        ({"customizedRetryPolicy": {"next": [0]}}, "from 1"),
        ({"customizedRetryPolicy": {"next": [True]}}, "from 1"),
        ({"customizedRetryPolicy": {"next": ["1s"]}}, "whole numbers"),
        ({"customizedRetryPolicy": {"next": [10**12]}}, "whole numbers"),
        ({"customizedRetryPolicy": {"first": [1]}}, "'first' is unknown"),
        ({"customizedRetryPolicy": [1]}, "a JSON object"),
        ({"exponentialRetryPolicy": {}}, "has no effect with the type CUSTOMIZED"),
        (
            {"type": "EXPONENTIAL", "customizedRetryPolicy": {"next": [1]}},
            "has no effect with the type EXPONENTIAL",
        ),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"initial": 0}}, "initial"),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": 2.5}}, "max"),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"multiplier": 10**6}}, "multiplier"),
        ({"type": "EXPONENTIAL", "exponentialRetryPolicy": {"max": 10}}, "above max"),
    ],
)
def test_invalid_policies_are_refused_with_the_reason(policy: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        read_retry_policy(policy)
