"""Algorithms with rounds of fixed length: ADEL-FL, SALF, Drop- and Wait-Stragglers, HeteroFL."""
