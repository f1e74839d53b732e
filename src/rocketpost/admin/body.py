"""Message bodies as text: decoded by a charset, or as JSON, hexadecimal or base64. Pure.

Compressed bodies are decompressed before they get here.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Final

_WIDTH: Final = 16


def body_text(body: bytes, form: str) -> str:
    """Return a body in one of :data:`FORMS`, or else as text of the charset ``form``."""
    shown = FORMS.get(form.lower())
    return body.decode(form, "replace") if shown is None else shown(body)


def _json(body: bytes) -> str:
    try:
        return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError) as error:
        return f"(not JSON: {error}) {body.decode('utf-8', 'replace')}"


def _hex(body: bytes) -> str:
    return "\n" + "\n".join(_hex_lines(body))


def _hex_lines(body: bytes) -> Iterator[str]:
    for start in range(0, len(body), _WIDTH):
        part = body[start : start + _WIDTH]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"{start:08x}  {part.hex(' '):<{3 * _WIDTH - 1}}  {text}"


FORMS: Final[dict[str, Callable[[bytes], str]]] = {
    "json": _json,
    "hex": _hex,
    "base64": lambda body: base64.b64encode(body).decode(),
}
"""Forms that are not charsets."""
