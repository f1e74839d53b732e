"""Makes ``diagnosis.samples`` importable: pytest knows a package by its conftest."""
