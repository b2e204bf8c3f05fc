"""Algorithms within a time budget: ADEL-FL, SALF, Drop-Stragglers, Wait-Stragglers, HeteroFL."""
