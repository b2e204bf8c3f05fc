"""A project with a server_fn."""
