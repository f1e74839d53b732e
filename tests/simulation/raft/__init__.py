"""Groups of Raft nodes on a simulated network, with simulated disks and checks after each step."""
