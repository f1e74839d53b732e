"""Changes: each is planned and shown first, confirmed, checked again, applied and recorded."""
