"""The port for clients of the remoting protocol: their requests are passed on to brokers."""
