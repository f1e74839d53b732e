"""EndTransaction: commits and rollbacks."""

from __future__ import annotations

from typing import Any, Final

from rocketpost.codec.codes import RequestCode
from rocketpost.codec.headers.transaction import EndTransaction
from rocketpost.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_NONE, TRANSACTION_ROLLBACK
from rocketpost.proxy.calls import Call
from rocketpost.proxy.handles import parse_transaction_id
from rocketpost.proxy.refusals import OK, Refusal
from rocketpost.proxy.validation import topic_name
from rocketpost.proxy.wire.enums import Code, TransactionResolution, TransactionSource
from rocketpost.proxy.wire.messages import EndTransactionResponse

_ENDS: Final = {
    int(TransactionResolution.COMMIT): TRANSACTION_COMMIT,
    int(TransactionResolution.ROLLBACK): TRANSACTION_ROLLBACK,
}


async def end_transaction(call: Call, request: Any) -> Any:
    """Commit a transaction, roll it back, or note that its producer does not know yet.

    The answer comes when that is stored.
    """
    topic = topic_name(request.topic)
    if not request.transaction_id.strip():
        raise Refusal(Code.INVALID_TRANSACTION_ID, "the call names no transaction")
    half = parse_transaction_id(request.transaction_id)
    header = EndTransaction(
        producer_group=topic,
        topic=topic,
        tran_state_table_offset=half.queue_offset,
        commit_log_offset=half.position,
        commit_or_rollback=_ENDS.get(request.resolution, TRANSACTION_NONE),
        from_transaction_check=request.source == TransactionSource.SOURCE_SERVER_CHECK,
        msg_id=half.message_id,
        transaction_id=half.message_id,
        broker_name=half.broker,
    )
    await call.client.link.call(half.broker, RequestCode.END_TRANSACTION, header)
    return EndTransactionResponse(status=OK)
