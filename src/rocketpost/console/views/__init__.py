"""The pages: each view returns a template with its data, which programs get as JSON."""
