"""The log of a server process: its form, its files, its levels, and a limit on repetitions."""
