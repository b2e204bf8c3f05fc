"""Warm nodes: `offbeat node`, which takes the place of Flower's SuperNode on a device."""
