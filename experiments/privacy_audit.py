"""An empirical audit of differential privacy: how well an attacker tells whether a device took part.

Each trial runs DP-FedBuff on a model of two numbers, with the seed's noise. In one world the device 0 uploads a canary,
the largest movement that the clip allows, as often as it may; in the other it uploads zeros (zero-out adjacency). The
attacker raises an alarm if the last version lies as far along the canary as the canary moves it. From the shares of
right and wrong alarms, with Clopper-Pearson bounds, follows a lower bound of epsilon without any assumption on the
mechanism:

    epsilon >= ln((TPR_low - delta) / FPR_high)

A correct implementation stays below the claimed epsilon; with noise that is too small the audit finds more.
`python -m experiments.privacy_audit` prints it.
"""

import argparse
from dataclasses import dataclass
from math import log

from scipy.stats import beta

from offbeat.algorithms import FedBuff
from offbeat.testing import ScriptedSession
from offbeat.trust.accounting import epsilon_of
from offbeat.trust.noise import Mechanism
from offbeat.trust.privacy import Privacy

CONFIDENCE = 0.95
"""Of the lower bound."""
DELTA = 0.1
"""The delta of the audit: a bound on epsilon at a small delta needs millions of trials."""
CLIP = 2.0
"""C, the norm of the canary after clipping."""


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What is audited."""

    noise_multiplier: float = 1.0
    most_updates: int = 2
    mechanism: Mechanism = "gaussian"
    noise_factor: float = 1.0
    """The noise that is really added, in units of the noise that is claimed: 1 unless there is a bug."""

    @property
    def claimed(self) -> float:
        """The epsilon that the exact accountant claims at the audit's delta."""
        return epsilon_of(self.most_updates, self.noise_multiplier, DELTA, "exact")

    def score(self, trial: int, *, taking_part: bool) -> float:
        """The last version along the canary, in units of what the canary moves it by."""
        policy = FedBuff(buffer=2, concurrency=2)
        privacy = Privacy(
            noise_multiplier=self.noise_multiplier,
            clip=CLIP,
            most_updates=self.most_updates,
            mechanism=self.mechanism,
            tree=2,
            band=2,
        )
        honest = privacy.combiner(policy, secret=False)
        assert honest is not None
        combiner = honest.model_copy(update={"noise_multiplier": self.noise_factor * self.noise_multiplier})
        devices = 2 if self.mechanism == "gaussian" else 4  # with shared noise a device rests every other version
        limits = privacy.limits(policy)
        session = ScriptedSession(
            policy, devices=devices, combiner=combiner, limits=limits, seed=2 * trial + taking_part
        )
        while session.finished is None:
            ticket = min(session.in_flight)
            canary = taking_part and session.in_flight[ticket].device == 0
            session.move(10.0 * CLIP if canary else 0.0, 1.0, ticket=ticket)
        return float(session.parameters[0]) / (self.most_updates * CLIP / policy.buffer)


def lower_bound(right: int, wrong: int, trials: int) -> float:
    """The lower bound of epsilon from the right and wrong alarms in two worlds of `trials` each; 0 if there is none.

    Each of the two Clopper-Pearson bounds has half of the allowed error.
    """
    error = (1 - CONFIDENCE) / 2
    low = float(beta.ppf(error, right, trials - right + 1)) if right else 0.0
    high = float(beta.ppf(1 - error, wrong + 1, trials - wrong)) if wrong < trials else 1.0
    return max(0.0, log((low - DELTA) / high)) if low > DELTA else 0.0


def audit(settings: Audit, trials: int) -> float:
    """The lower bound of epsilon from this number of trials in each world."""
    right, wrong = (
        sum(settings.score(trial, taking_part=taking_part) >= 1.0 for trial in range(trials))
        for taking_part in (True, False)
    )
    return lower_bound(right, wrong, trials)


def main() -> None:
    """Print the audit of each mechanism, as it is and with half of its noise."""
    parser = argparse.ArgumentParser(description="Audit the differential privacy of DP-FedBuff.")
    parser.add_argument("--trials", type=int, default=2000, help="trials in each world (default: 2000)")
    trials = parser.parse_args().trials
    print(f"epsilon at delta = {DELTA}, {trials} trials, {CONFIDENCE:.0%} confidence")
    for mechanism in ("gaussian", "tree", "banded"):
        settings = Audit(mechanism=mechanism)
        halved = Audit(mechanism=mechanism, noise_factor=0.5)
        print(
            f"{mechanism:9} claimed {settings.claimed:.2f}, found at least {audit(settings, trials):.2f}; "
            f"with half of the noise {audit(halved, trials):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
