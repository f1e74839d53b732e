"""Work that outlives a request: each job has a file, can be stopped, and resumes after a kill."""
