"""Several runs side by side: which runs a comparison or a sweep consists of, and running them in processes."""
