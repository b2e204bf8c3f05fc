"""What a device does with an order: the logic of a local run, and the trainers that make its numbers."""
