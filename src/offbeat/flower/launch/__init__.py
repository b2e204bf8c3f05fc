"""A whole deployment on one machine, as processes that are watched and ended together."""
