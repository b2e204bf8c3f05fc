"""offbeat beside Flower's own FedAvg on the same nodes: a project with a model and data of its own."""
