"""The ``mqadmin`` commands, one module per noun."""
