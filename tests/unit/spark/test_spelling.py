"""Names are named, those that may have been meant first."""

from __future__ import annotations

from rocketpost.spark.spelling import some_like


def test_names_most_alike_come_first_and_not_all_of_many() -> None:
    assert some_like("x", []) == ""
    assert some_like("biling", ["alpha", "billing", "alpha"]) == "billing, alpha"
    many = some_like("name-77", [f"name-{number}" for number in range(99)])
    assert many.startswith("name-77, ")
    assert (many.count(","), many.endswith(", ...")) == (20, True)
