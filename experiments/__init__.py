"""What papers claim, held against runs of ours: one file per claim, one command for all of them."""
