"""Every JSON body that is read, by servers and clients alike."""

from __future__ import annotations

import zlib

from fuzz.finding import Find
from fuzz.json_shapes import body
from fuzz.supply import Supply
from rocketpost.codec.bodies import (
    client,
    cluster,
    group,
    kv,
    offset,
    registration,
    route,
    stats,
    topic,
)
from rocketpost.codec.lenient_json import encode, standardize
from rocketpost.errors import RocketpostError

_DECODERS = [
    value
    for module in (client, cluster, group, kv, offset, route, stats, topic)
    for name, value in vars(module).items()
    if name.startswith("decode_") and value.__module__ == module.__name__
]
_KNOWN = ("TopicA", "GroupA", "broker-a", "127.0.0.1:10911")


class Target:
    """Decodes bodies; encodes again what came out."""

    def check(self, data: bytes) -> None:
        """Decode one body as each kind of body."""
        supply = Supply(data)
        compressed = supply.chance(8)
        version = supply.pick((0, 36, 400, 480))
        text = body(supply, _KNOWN)
        for decode in _DECODERS:
            try:
                decode(text)
            except RocketpostError:
                continue
        try:
            if len(standardize(text)) > 16 * len(text) + 64:
                raise Find("the standard form is far larger than the text")
        except RocketpostError:
            pass
        try:
            table = registration.decode_registration(
                zlib.compress(text) if compressed else text, version=version, compressed=compressed
            )
            registration.encode_registration(table)
            encode(table)
        except RocketpostError:
            return

    def close(self) -> None:
        """Nothing is held."""
