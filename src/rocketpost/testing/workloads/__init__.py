"""Workloads of one message kind each, for campaigns that kill brokers.

A workload survives every death of the broker: it uses the public SDK, tries again when a call
fails, and keeps a record of the broker's promises. At the end, ``settle`` waits until every promise
is due and reports those that were broken.
"""

from rocketpost.testing.workloads.base import Workload, Workplace
from rocketpost.testing.workloads.locked import LockedWorkload
from rocketpost.testing.workloads.numbered import NumberedWorkload
from rocketpost.testing.workloads.ordered import OrderedWorkload
from rocketpost.testing.workloads.popped import PoppedWorkload
from rocketpost.testing.workloads.progress import ProgressWorkload
from rocketpost.testing.workloads.retried import RetriedWorkload
from rocketpost.testing.workloads.timed import TimedWorkload
from rocketpost.testing.workloads.transactions import TransactionWorkload

EVERY_KIND: tuple[type[Workload], ...] = (
    NumberedWorkload,
    OrderedWorkload,
    PoppedWorkload,
    RetriedWorkload,
    TimedWorkload,
    TransactionWorkload,
)
"""One workload for each message kind that is not an ordinary send."""

GROUP_KINDS: tuple[type[Workload], ...] = (*EVERY_KIND, LockedWorkload, ProgressWorkload)
"""Those, and promises that only a group of brokers makes."""

__all__ = [
    "EVERY_KIND",
    "GROUP_KINDS",
    "LockedWorkload",
    "NumberedWorkload",
    "OrderedWorkload",
    "PoppedWorkload",
    "ProgressWorkload",
    "RetriedWorkload",
    "TimedWorkload",
    "TransactionWorkload",
    "Workload",
    "Workplace",
]
