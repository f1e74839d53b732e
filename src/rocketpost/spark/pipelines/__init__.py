"""Work over many messages, each a function of a session and its options, and a command."""
