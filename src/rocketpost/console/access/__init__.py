"""Users of the console: passwords, sessions, links for new users, and users of brokers."""
