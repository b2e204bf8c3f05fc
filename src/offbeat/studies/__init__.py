"""The papers' studies, each as one command: what to run, and the paper's tables from it beside the paper's numbers."""
