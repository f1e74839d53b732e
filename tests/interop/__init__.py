"""Foreign clients, brokers and stores against Rocketpost, and Rocketpost against them."""
