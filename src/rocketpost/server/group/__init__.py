"""A broker as a member of a group that elects its leader."""
