"""The service of a member for clients: reads of a follower, requests passed on to the leader."""
