"""Values and ids that every layer shares. Pure."""
