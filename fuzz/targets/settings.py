"""Properties text and the settings that are made of it."""

from __future__ import annotations

import re

from fuzz.finding import Find
from fuzz.supply import Supply
from rocketpost import settings
from rocketpost.errors import ConfigError, RocketpostError
from rocketpost.model.topic import DataVersion
from rocketpost.server.settings.broker import BrokerConfig, broker_settings
from rocketpost.server.settings.live_config import LiveConfig, decode_overrides
from rocketpost.server.settings.namesrv import NamesrvConfig
from rocketpost.store.config import StoreConfig

_KEYS = sorted(
    {key for cls in (BrokerConfig, StoreConfig, NamesrvConfig) for key in settings.keys_of(cls)}
)
_is_dangerous = re.compile(r"[pP]ath|Dir$|Addr|Address|Home|IP[12]|[pP]ort$|Command").search


class _Clock:
    def now_ms(self) -> int:
        return 0


class Target:
    """Reads settings as a file and as a request of an administrator."""

    def __init__(self) -> None:
        self._broker, self._store = broker_settings({"storePathRootDir": "/nowhere"})

    def check(self, data: bytes) -> None:
        """Parse, build, change."""
        supply = Supply(data)
        if supply.chance(2):
            text = supply.rest().decode("utf-8", "replace")
        else:
            pairs = [(supply.pick(_KEYS), supply.text()) for _ in range(supply.number(1, 4))]
            text = "\n".join(f"{key}={value}" for key, value in pairs)
        try:
            values = settings.parse_properties(text)
        except ConfigError:
            return
        again = settings.parse_properties(settings.format_properties(values))
        if again != values:
            raise Find(f"settings do not survive being written: {values!r} became {again!r}")
        self._build(values)
        self._change(values)
        try:
            decode_overrides(text.encode("utf-8", "replace"))
        except RocketpostError:
            return

    def close(self) -> None:
        """Nothing is held."""

    def _build(self, values: dict[str, str]) -> None:
        for make in (broker_settings, lambda given: settings.build(NamesrvConfig, given)):
            try:
                make(values)
            except ConfigError:
                continue

    def _change(self, values: dict[str, str]) -> None:
        live = LiveConfig(self._broker, self._store, clock=_Clock())
        before = live.properties()
        try:
            live.change(values)
        except RocketpostError:
            return
        after = live.properties()
        for key in before:
            if before[key] != after[key] and _is_dangerous(key):
                raise Find(f"an administrator may change {key}")
        if values and live.version == DataVersion():
            raise Find("settings changed without a new version")
        decode_overrides(live.to_json())
