"""Golden numbers from exact arithmetic, and adapters that play them to other frameworks."""
