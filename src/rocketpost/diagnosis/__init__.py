"""Diagnosis of messages and consumer groups: fates, losses, lags and standstills.

Asks brokers and consumers through the client and judges their answers. Prints nothing: the admin
commands render what is found here.
"""
