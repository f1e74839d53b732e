"""Settings of the servers, and their changes at run time."""
