"""The server of a real run: the driver on the wall clock, the exchange of messages, and the devices' membership."""
