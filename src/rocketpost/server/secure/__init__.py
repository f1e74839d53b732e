"""TLS of a server: its certificates, in use and made here."""
