"""Brokers that get copies are asked with the keys of the environment."""

from __future__ import annotations

import pytest

from rocketpost.client.credentials import ACCESS_KEY, SECRET_KEY, Credentials
from rocketpost.spark.pipelines.copying import CopyConfig
from rocketpost.spark.pipelines.targets import Targets


def test_brokers_are_asked_with_the_keys_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ACCESS_KEY, "user")
    monkeypatch.setenv(SECRET_KEY, "secret")
    targets = Targets(CopyConfig(name_servers="h:1", name="monday"), "all", [])
    assert targets._producer.config.credentials == Credentials("user", "secret")
    assert targets._admin.config.credentials == Credentials("user", "secret")
