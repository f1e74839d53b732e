"""The methods of the protocol, grouped by their subject."""
