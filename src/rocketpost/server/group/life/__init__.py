"""Events in the life of a group: beginning, new members, handover, repair of damage."""
