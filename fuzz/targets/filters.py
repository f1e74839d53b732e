"""Filter expressions and the messages that they judge."""

from __future__ import annotations

import random
import time

from fuzz.finding import Find
from fuzz.supply import Supply
from rocketpost.broker.filter.matching import RecordFilter
from rocketpost.client.compression import decompress
from rocketpost.codec.properties import decode_properties
from rocketpost.codec.record import Record, encode_record, pack_host
from rocketpost.errors import FilterError
from rocketpost.filter import Expression, check_filter, compile_filter

_WORDS = (
    *("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS"),
    *("STARTSWITH", "ENDSWITH", "MATCHES('big')", "MATCHES(", "=", "<>", ">", ">=", "<", "<="),
    *("+", "-", "(", ")", ",", "'x'", "''", "'", "5", "0", "2147483648", "9223372036854775808"),
    *("1.5", ".5", "5.", "1e400", "a", "b", "a b", "$c", "_d", "body", "body.x", "body[0]", ".x"),
    *("['y']", "-- z\n", "--", "/* z */", "/*", "\n", " ", "IN ('x', '5')", "BETWEEN 1 AND 5"),
)
_VALUES = ("5", "5.5", "x", "true", "NaN", "-0.0", "2147483648", " 5 ", "\u0665", "1e400", "0x1p3")
_BODIES = (b"", b"{}", b'{"x": 5, "y": "5"}', b'[{"x": true}]', b"[" * 5000, b'{"x": 1e400}', b"5")
_SECONDS_MAX = 2.0
_HOST = pack_host("10.0.0.1", 10911)


class Target:
    """Reads expressions, and has messages judged by those that are right."""

    def check(self, data: bytes) -> None:
        """Compile, judge in both ways, compare."""
        supply = Supply(data)
        if supply.chance(4):
            text = supply.rest().decode("utf-8", "replace")
        else:
            words = [supply.pick(_WORDS) for _ in range(supply.number(0, 40))]
            text = ("" if supply.chance(4) else " ").join(words)
            text *= supply.pick((1, 1, 1, 1, 7, 400))
        started = time.thread_time()
        expression = self._compiled(text)
        if expression is not None:
            self._judge(expression, supply)
        if time.thread_time() - started > _SECONDS_MAX:
            raise Find(f"an expression takes too long: {text[:200]!r}")

    def close(self) -> None:
        """Nothing is held."""

    def _compiled(self, text: str) -> Expression | None:
        found: Expression | None = None
        for paths in (False, True):
            try:
                found = compile_filter(text, resolve=lambda name: "a = 5", paths=paths)
            except FilterError as error:
                place = error.position
                if place is not None and not 1 <= place <= len(text) + 1:
                    raise Find(f"a place that is not in the text: {error}") from error
                if len(str(error)) > 500:
                    raise Find(f"a refusal of {len(str(error))} characters") from error
                if found is not None:
                    raise Find(f"paths made it wrong: {text!r}") from error
        try:
            check_filter(text)
        except FilterError:
            return found
        if found is None:
            raise Find(f"a client takes what a broker refuses: {text!r}")
        return found

    def _judge(self, expression: Expression, supply: Supply) -> None:
        chance = random.Random(supply.number(0, 2**31))
        for _ in range(4):
            pairs = [f"{name}\x01{chance.choice(_VALUES)}\x02" for name in "ab_"]
            text = "".join(chance.sample(pairs, chance.randint(0, 3))).encode()
            text += supply.raw(32)
            body = chance.choice(_BODIES)
            record = memoryview(b"".join(encode_record(_record(text, body))))
            in_place, work = RecordFilter(expression, unpack=decompress).matches(record)
            if in_place != expression.matches(decode_properties(text), body):
                raise Find(f"two verdicts: {expression.text!r} on {text!r} and {body[:99]!r}")
            if work <= 0:
                raise Find("a judgement that costs nothing")


def _record(properties: bytes, body: bytes) -> Record:
    return Record(
        size=0,
        magic=0,
        body_crc=0,
        queue_id=0,
        flag=0,
        queue_offset=0,
        position=0,
        sys_flag=0,
        born_ms=0,
        born_host_bytes=_HOST,
        store_ms=0,
        store_host_bytes=_HOST,
        reconsume_times=0,
        prepared_position=0,
        body=body,
        topic="T",
        properties_bytes=properties,
    )
