"""Tables of a group: a leader writes them to the log, and members read them there."""
