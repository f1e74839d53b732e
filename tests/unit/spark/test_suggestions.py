"""Names are named, those that may have been meant first."""

from __future__ import annotations

from rocketpost.spark.suggestions import list_similar


def test_the_most_similar_names_come_first_and_the_list_is_short() -> None:
    assert list_similar("x", []) == ""
    assert list_similar("biling", ["alpha", "billing", "alpha"]) == "billing, alpha"
    many = list_similar("name-77", [f"name-{number}" for number in range(99)])
    assert many.startswith("name-77, ")
    assert (many.count(","), many.endswith(", ...")) == (20, True)
