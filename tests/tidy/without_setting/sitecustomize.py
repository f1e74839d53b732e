"""Makes one setting unread, in this process and in those that it starts.

``WITHOUT_SETTING`` names it as ``module:Class:member`` or, of a table of attributes,
``module:Class:member:key``. Whoever reads the member sees the default, whatever was given; of a
table, the key is missing. Python imports this module at its start when its directory is on
``PYTHONPATH``; ``test_settings_act`` runs tests so, to see them fail.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from typing import Any


def _default(cls: type, member: str) -> Any:
    if dataclasses.is_dataclass(cls):
        fields = {field.name: field for field in dataclasses.fields(cls)}
        default, factory = fields[member].default, fields[member].default_factory
        return factory() if factory is not dataclasses.MISSING else default
    return getattr(cls(), member)


def _hide(module: str, name: str, member: str, key: str | None) -> None:
    cls = getattr(importlib.import_module(module), name)
    owner = next(each for each in cls.__mro__ if member in vars(each))
    if key is None:
        default = _default(cls, member)
        setattr(owner, member, property(lambda self: default, lambda self, value: None))
        return
    real = vars(owner)[member]

    def without_key(self: object) -> dict[str, str]:
        return {each: value for each, value in real.__get__(self).items() if each != key}

    setattr(owner, member, property(without_key, real.__set__))


if wanted := os.environ.get("WITHOUT_SETTING"):
    parts = wanted.split(":")
    _hide(parts[0], parts[1], parts[2], parts[3] if len(parts) > 3 else None)
