"""The message store: files and nothing else."""
