"""Messages between the members of a group that elects its leader."""
