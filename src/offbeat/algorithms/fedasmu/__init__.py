"""FedASMU and FedSSMU: server, weights of uploads, device rule, and slot selection."""
