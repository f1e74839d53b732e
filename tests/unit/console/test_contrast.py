"""Colours of both themes: text against what is behind it, computed as WCAG 2.2 does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rocketpost.console

SHEET = (Path(rocketpost.console.__file__).parent / "static" / "console.css").read_text()
TEXT_MIN, SHAPE_MIN = 4.5, 3.0
GROUNDS = {
    "page": ("text", "muted", "link", "good", "warn", "bad"),
    "card": ("text", "muted", "link", "good", "warn", "bad", "chart"),
    "soft": ("text", "muted", "link"),
    "link-soft": ("text", "muted", "link", "good", "warn", "bad"),
    "good-soft": ("text", "good", "link"),
    "warn-soft": ("text", "muted", "warn", "link"),
    "bad-soft": ("text", "muted", "bad", "link"),
}
"""Colours of text by the ground that they are used on."""


def colours(block: str) -> dict[str, str]:
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", block))


LIGHT = colours(SHEET[SHEET.index(":root {") : SHEET.index("[data-theme")])
DARK = colours(
    SHEET[SHEET.index('[data-theme="dark"] {') : SHEET.index("@media (prefers-color-scheme")]
)
AUTO = colours(SHEET[SHEET.index('[data-theme="auto"] {') : SHEET.index("* { box-sizing")])


def luminance(colour: str) -> float:
    parts = [int(colour[index : index + 2], 16) / 255 for index in (1, 3, 5)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_formula_is_that_of_wcag() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_is_readable(theme: dict[str, str]) -> None:
    weak = {
        f"{text} on {ground}": round(contrast(theme[text], theme[ground]), 2)
        for ground, texts in GROUNDS.items()
        for text in texts
        if contrast(theme[text], theme[ground]) < TEXT_MIN
    }
    assert not weak


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_borders_of_fields_and_filled_buttons_are_seen(theme: dict[str, str]) -> None:
    [border] = set(re.findall(r"border: 1px solid (#[0-9a-f]{6})", SHEET))
    assert contrast(border, theme["card"]) >= SHAPE_MIN
    for ground in re.findall(r"\.primary\S* \{ background: (#[0-9a-f]{6})", SHEET):
        assert contrast("#ffffff", ground) >= TEXT_MIN


def test_the_system_theme_is_the_dark_one_at_night() -> None:
    assert AUTO == DARK
    assert len(LIGHT) > 10
