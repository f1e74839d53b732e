"""The state of clusters, asked from their servers once a round, and its history in memory."""
