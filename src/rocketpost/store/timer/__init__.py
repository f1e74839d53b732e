"""Files of the timer: wheel, log and checkpoint."""
