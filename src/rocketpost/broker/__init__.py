"""What a broker decides. No waiting: values in, values out, the clock is a parameter."""
