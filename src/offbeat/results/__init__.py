"""What a run leaves behind: its files and checkpoints, comparisons, plots and reports."""
