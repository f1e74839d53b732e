"""Files and records by which a store takes part in a group that elects its leader."""
