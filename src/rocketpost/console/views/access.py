"""Access: users and rules of brokers with access control, as each broker has them."""

from __future__ import annotations

import msgspec

from rocketpost.access.info import AclInfo, UserInfo
from rocketpost.console.access.users import Role
from rocketpost.console.collect.snapshot import BrokerView
from rocketpost.console.pages import Page
from rocketpost.console.visit import ForbiddenError, Visit
from rocketpost.diagnosis.concurrency import map_concurrently
from rocketpost.errors import RocketpostError


class AccessUser(msgspec.Struct, kw_only=True, rename="camel"):
    """A user of brokers; never with its password."""

    name: str
    type: str
    status: str
    brokers: list[str]


class AccessRule(msgspec.Struct, kw_only=True, rename="camel"):
    """A rule about one resource."""

    subject: str
    resource: str
    actions: list[str]
    decision: str
    sources: list[str]
    brokers: list[str]


class AccessPage(msgspec.Struct, kw_only=True, rename="camel"):
    """The data of the page."""

    users: list[AccessUser]
    rules: list[AccessRule]
    brokers: list[str]
    problems: dict[str, str]
    is_on: bool


async def show_access(visit: Visit) -> Page:
    """Show users and rules of all masters.

    Raises:
        ForbiddenError: The visitor is no administrator.
    """
    if visit.role < Role.ADMIN:  # also in a console that only reads
        raise ForbiddenError("error.role")
    snapshot = await visit.cluster.collector.fresh_snapshot()
    masters = [each for each in snapshot.brokers if each.is_master]
    problems: dict[str, str] = {}

    async def ask(broker: BrokerView) -> tuple[list[UserInfo], list[AclInfo]]:
        try:
            access = visit.admin.access
            return await access.users(broker.address), await access.all_rules(broker.address)
        except RocketpostError as error:
            problems[broker.name] = str(error)
            return [], []

    answers = await map_concurrently(masters, ask)
    names = [each.name for each in masters]
    users = merge_users(list(zip(names, [each[0] for each in answers], strict=True)))
    data = AccessPage(
        users=users,
        rules=merge_rules(list(zip(names, [each[1] for each in answers], strict=True))),
        brokers=names,
        problems=problems,
        is_on=bool(users),
    )
    return Page(
        template="access.html",
        title=visit.text("nav.access"),
        data=data,
        command=visit.command("listAcl", "-c", next(iter(snapshot.clusters), "")),
    )


def merge_users(tables: list[tuple[str, list[UserInfo]]]) -> list[AccessUser]:
    """Return the users of all brokers; those that differ are listed apart. Pure."""
    found: dict[tuple[str, str, str], AccessUser] = {}
    for broker, users in tables:
        for each in users:
            key = (each.username or "", each.user_type or "", each.user_status or "")
            user = found.setdefault(
                key, AccessUser(name=key[0], type=key[1], status=key[2], brokers=[])
            )
            user.brokers.append(broker)
    return [found[key] for key in sorted(found)]


def merge_rules(tables: list[tuple[str, list[AclInfo]]]) -> list[AccessRule]:
    """Return the rules of all brokers; those that differ are listed apart. Pure."""
    found: dict[tuple[str, ...], AccessRule] = {}
    for broker, infos in tables:
        for info in infos:
            for entry in (
                entry for policy in info.policies or [] for entry in policy.entries or []
            ):
                rule = AccessRule(
                    subject=info.subject or "",
                    resource=entry.resource or "",
                    actions=sorted(entry.actions or []),
                    decision=entry.decision or "",
                    sources=sorted(entry.source_ips or []),
                    brokers=[],
                )
                key = (rule.subject, rule.resource, *rule.actions, rule.decision, *rule.sources)
                found.setdefault(key, rule).brokers.append(broker)
    return [found[key] for key in sorted(found)]
