"""Errors in options are reported in one sentence, before any server is asked."""

from __future__ import annotations

import pytest

from rocketpost.errors import ConfigError
from rocketpost.spark.option_checks import check_expression, check_name_servers
from rocketpost.spark.options import SourceOptions, parse_options
from rocketpost.spark.sink.options import SinkOptions

WRONG_SERVERS = [
    ("", "nameServer is required, such as"),
    (" ; ", "nameServer is required, such as"),
    ("localhost", "'localhost' is not host:port, such as 127.0.0.1:9876"),
    ("a:9876;b", "'b' is not host:port"),
    ("a:port", "'a:port' is not host:port"),
    ("a:70000", "'a:70000' is not host:port"),
    ("a:9876,b:9876", "with semicolons"),
    ("a:9876 b:9876", "with semicolons"),
]


@pytest.mark.parametrize(("text", "said"), WRONG_SERVERS)
@pytest.mark.parametrize("kind", [SourceOptions, SinkOptions])
def test_name_servers_have_a_host_and_a_port(
    kind: type[SourceOptions] | type[SinkOptions], text: str, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_options(kind, {"nameServer": text, "topic": "T"})


@pytest.mark.parametrize("text", ["a:1", "a:1;b:2;", "[::1]:9876", "http://a.b:80", "a:1; b:2"])
def test_addresses_that_clients_understand_are_accepted(text: str) -> None:
    check_name_servers(text)


def test_expressions_are_checked_by_their_kind() -> None:
    check_expression("TAG", "A || B")
    check_expression("SQL92", "a > 5 AND b IS NOT NULL")
    with pytest.raises(
        ConfigError, match=r"subExpression='a >< 1' is not an SQL92 .*at character 4"
    ):
        check_expression("SQL92", "a >< 1")
    for nothing in ("*", ""):
        with pytest.raises(ConfigError, match="SQL92 needs subExpression, such as a > 5"):
            check_expression("SQL92", nothing)
