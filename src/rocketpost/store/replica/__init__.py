"""Raw appends, a ceiling for readers, and cuts of the log, for replicas."""
