"""The log writer: appends and commits messages, and answers their senders."""
