"""What a broker does beyond taking and handing out messages, a module each."""
