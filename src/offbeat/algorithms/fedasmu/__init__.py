"""FedASMU and FedSSMU: the server, the device that asks for the fresh model, and when it asks."""
