"""The driver on a virtual clock: event queue, engine, lazy training, replay of real runs."""
