"""Detection of damage: checks of reads, and the scrub."""
