"""The features of a broker, one module each."""
