"""Masters and slaves as real processes, and a campaign against them."""
