"""Work that outlives a request: each job has a file, can be stopped, and goes on after a kill."""
