"""Persistent nodes: `offbeat node`, which replaces Flower's SuperNode on a device."""
