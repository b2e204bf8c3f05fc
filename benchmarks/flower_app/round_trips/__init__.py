"""A Flower project with its own model and data: offbeat beside Flower's FedAvg on the same nodes."""
