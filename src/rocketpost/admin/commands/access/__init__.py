"""Commands about users, their rules and the audit log."""
