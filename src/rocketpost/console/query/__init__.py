"""Messages as a table: what a query reads, and the child process that answers it."""
