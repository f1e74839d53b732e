"""Reasons in the visitor's language, which brokers, consumers and diagnoses give in English.

The table ``reason`` of the catalogue has them. A sentence that it lacks stays as it is.
"""

from __future__ import annotations

import re
import string
from typing import Final, NamedTuple

from rocketpost.console.catalogue import DEFAULT, Catalogue

_TABLE: Final = "reason."
_NESTED: Final = "reason"
"""Beginning of the names of placeholders that have a reason of their own."""
_JOINTS: Final = {"zh": "；"}
_DEPTH_MAX: Final = 4
_LENGTH_MAX: Final = 1000


class _Form(NamedTuple):
    key: str
    pattern: re.Pattern[str]


class Reasons:
    """Translates reasons.

    Args:
        catalogue: The texts, with those of reasons in all languages.
    """

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        texts = [
            (key, texts[DEFAULT]) for key, texts in catalogue.entries() if key.startswith(_TABLE)
        ]
        # A form with more text of its own says more than a shorter one that matches, too.
        texts.sort(key=lambda each: -len(re.sub(r"\{\w+\}", "", each[1])))
        self._forms = [_Form(key, _compile(text)) for key, text in texts]

    def translate(self, language: str, text: str) -> str:
        """Return a text of one or several reasons in a language."""
        if language == DEFAULT or len(text) > _LENGTH_MAX:
            return text
        whole = self._find(language, text, 0)
        if whole is not None:
            return whole
        parts = text.split("; ")
        return _JOINTS[language].join(self._find(language, part, 0) or part for part in parts)

    def _find(self, language: str, text: str, depth: int) -> str | None:
        if depth > _DEPTH_MAX:
            return None
        matches = [
            (form.key, found.groupdict())
            for form in self._forms
            if (found := form.pattern.fullmatch(text))
        ]
        # Of those around another reason, the one around the longest was added last.
        matches.sort(key=lambda each: -len(each[1].get(_NESTED, text)))
        for key, values in matches:
            nested = {
                place: self._find(language, value, depth + 1)
                for place, value in values.items()
                if place.startswith(_NESTED)
            }
            if None not in nested.values():
                return self._catalogue.text(language, key, **values | nested)
        return None


def _compile(text: str) -> re.Pattern[str]:
    """Return a pattern for a text with placeholders; numbers stand for ``{count}`` and the like."""
    pattern = ""
    for literal, place, _, _ in string.Formatter().parse(text):
        pattern += re.escape(literal)
        if place is not None:
            pattern += f"(?P<{place}>{_PLACES.get(place, '.+?')})"
    return re.compile(pattern, re.DOTALL)


_PLACES: Final = {
    **dict.fromkeys(("count", "offset", "end", "seconds", "number", "limit"), r"[\d?]+"),
    "client": r"\S+",
}
