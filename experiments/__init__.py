"""Published claims held against our runs: one module per paper, run from the root of a checkout.

`python -m experiments.seafl --quick` runs a small form of one study; `--help` lists the options. Beside each module,
a TOML file has the published numbers, the claims and the captions. What all studies share is in `experiments.harness`.
"""

STUDIES = (
    "adel_fl",
    "fedasmu",
    "fedasmu_regime",
    "seafl",
    "delays",
    "leaderboard",
    "defaults",
    "unseen",
    "robustness",
    "fairness",
)
"""The modules of all studies, in the order of the overview page."""
