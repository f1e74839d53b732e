"""Recall of timed messages; the handle names the broker."""

from __future__ import annotations

from rocketpost.client.message import check_topic
from rocketpost.client.session import Session
from rocketpost.codec.codes import RequestCode
from rocketpost.codec.headers.timer import RecallHeader, RecallResponse
from rocketpost.codec.recall_handle import decode_recall_handle
from rocketpost.errors import MessageRefused, NotConnected, RemoteProtocolError
from rocketpost.model.names import is_retry_or_dlq


async def recall_message(
    session: Session, group: str, topic: str, handle: str, timeout: float | None
) -> str:
    """Recall a message; return its id."""
    check_topic(topic)
    if is_retry_or_dlq(topic):
        raise MessageRefused(f"messages of the topic {topic} cannot be recalled")
    try:
        broker_name = decode_recall_handle(handle).broker_name
    except RemoteProtocolError as error:
        raise MessageRefused(str(error)) from None
    await session.routes.publish(topic)
    header = RecallHeader(topic=topic, recall_handle=handle, producer_group=group)
    response = await session.patiently(
        topic,
        lambda: session.call(
            session.routes.master(broker_name), RequestCode.RECALL_MESSAGE, header, timeout=timeout
        ),
        seconds=timeout,
        after=NotConnected,
    )
    return response.read(RecallResponse).msg_id
