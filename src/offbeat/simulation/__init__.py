"""The driver on a virtual clock: event queue, engine, lazy training, executors, replay of real runs."""
