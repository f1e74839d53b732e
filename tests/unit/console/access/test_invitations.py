"""An invitation works once and for ten minutes."""

from __future__ import annotations

from rocketpost.console.access.invitations import VALID_SECONDS, Invitations
from rocketpost.console.access.users import Role


def test_an_invitation_works_once_and_for_ten_minutes() -> None:
    now = [0.0]
    invitations = Invitations(lambda: now[0])
    token = invitations.make(role=Role.ADMIN)
    assert invitations.find("") is None
    found = invitations.find(token)
    assert found is not None
    assert found.role is Role.ADMIN
    invitations.use(token)
    assert invitations.find(token) is None
    late = invitations.make(name="bob", role=Role.VIEWER, reads_bodies=False)
    now[0] += VALID_SECONDS
    assert invitations.find(late) is None


def test_open_invitations_are_bounded() -> None:
    invitations = Invitations(lambda: 0.0)
    first = invitations.make(role=Role.VIEWER)
    for _ in range(100):
        invitations.make(role=Role.VIEWER)
    assert invitations.find(first) is None
