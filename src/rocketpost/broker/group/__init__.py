"""Consumer groups: configuration, members, offsets, locks and retries."""
