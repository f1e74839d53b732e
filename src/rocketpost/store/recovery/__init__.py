"""Recovery of a store before it opens."""
