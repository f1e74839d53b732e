"""Messages of the delay levels."""
