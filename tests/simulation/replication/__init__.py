"""A master and its slaves on simulated disks and a simulated network."""
