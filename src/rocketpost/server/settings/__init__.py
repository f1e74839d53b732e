"""Settings of the servers, and the door through which they change."""
