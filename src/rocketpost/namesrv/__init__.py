"""What a name server decides. No waiting: values in, values out."""
