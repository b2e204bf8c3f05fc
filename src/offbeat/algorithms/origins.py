"""Where each algorithm comes from, and how sure we are of its rule. A new algorithm is a line here, too."""

from dataclasses import dataclass
from typing import Literal

Family = Literal["synchronous", "asynchronous", "buffered", "iterations", "time budget"]
"""Rounds that wait for everybody; a version for every upload; one for several uploads; steps of fixed length, whoever
has delivered; rounds of planned length in a time budget."""
Certainty = Literal["published", "authors' code", "restated", "our reading"]
"""What the rule follows: the paper's text; the code of its authors; what others write or programmed; or, where these
leave it open or were not at hand, ourselves."""


@dataclass(frozen=True)
class Origin:
    """What `offbeat list algorithms` says beside the line of help."""

    family: Family
    paper: str
    certainty: Certainty


ORIGINS: dict[str, Origin] = {
    "fedavg": Origin("synchronous", "McMahan et al., AISTATS 2017", "published"),
    "fedprox": Origin("synchronous", "Li et al., MLSys 2020", "authors' code"),
    "moon": Origin("synchronous", "Li et al., CVPR 2021", "authors' code"),
    "feddyn": Origin("synchronous", "Acar et al., ICLR 2021", "authors' code"),
    "fedlws": Origin("synchronous", "Shi et al., ICLR 2025", "authors' code"),
    "fedasync": Origin("asynchronous", "Xie et al., OPT 2020", "restated"),
    "aso-fed": Origin("asynchronous", "Chen et al., IEEE Big Data 2020", "restated"),
    "fedsa": Origin("asynchronous", "Chen et al., FGCS 2021", "our reading"),
    "fedbuff": Origin("buffered", "Nguyen et al., AISTATS 2022", "published"),
    "fedasmu": Origin("asynchronous", "Liu et al., AAAI 2024", "published"),
    "fedssmu": Origin("synchronous", "Jia et al., 2025", "published"),
    "seafl": Origin("buffered", "Islam et al., SEAFL, 2025", "published"),
    "seafl2": Origin("buffered", "Islam et al., SEAFL, 2025", "published"),
    "port": Origin("buffered", "Su and Li, IWQoS 2022", "our reading"),
    "safa": Origin("buffered", "Wu et al., IEEE Trans. Computers 2021", "restated"),
    "sfl": Origin("iterations", "Hao et al., 2025", "published"),
    "audg": Origin("iterations", "Hao et al., 2025", "published"),
    "psurdg": Origin("iterations", "Hao et al., 2025", "published"),
    "adel": Origin("time budget", "Goren et al., 2026", "published"),
    "salf": Origin("time budget", "Lang et al., IEEE Trans. Communications 2025", "restated"),
    "drop-stragglers": Origin("time budget", "Chen et al., 2016", "published"),
    "wait-stragglers": Origin("time budget", "McMahan et al., AISTATS 2017", "published"),
    "heterofl": Origin("time budget", "Diao et al., ICLR 2021", "authors' code"),
}
"""Where every algorithm comes from, by its name in the registry."""
