"""A broker whose gRPC port has a bug: ``python odd_proxy.py BUG mqbroker -c FILE ...``."""

from __future__ import annotations

import itertools
import sys
from typing import Any

from rocketpost.proxy.ack_batches import AckBatches
from rocketpost.proxy.services import sending
from rocketpost.proxy.services.sending import SendMethods
from rocketpost.proxy.wire.enums import Code
from rocketpost.proxy.wire.messages import SendResultEntry
from rocketpost.server.__main__ import servers

EVERY = 50


def answers_before_sending() -> None:
    """Acknowledge every fiftieth message without storing it."""
    numbers, real = itertools.count(1), SendMethods._send_one

    async def send(self: Any, client: Any, queues: Any, message: Any, properties: Any) -> Any:
        if next(numbers) % EVERY:
            return await real(self, client, queues, message, properties)
        name = message.system_properties.message_id
        return SendResultEntry(status=sending.status(Code.OK), message_id=name)

    SendMethods._send_one = send  # type: ignore[method-assign]


def forgets_receipts() -> None:
    """Answer every fiftieth acknowledgement without telling the broker."""
    numbers, real = itertools.count(1), AckBatches.acknowledge

    async def acknowledge(self: Any, link: Any, taken: Any) -> None:
        if next(numbers) % EVERY:
            await real(self, link, taken)

    AckBatches.acknowledge = acknowledge  # type: ignore[method-assign]


if __name__ == "__main__":
    globals()[sys.argv.pop(1)]()
    servers()
