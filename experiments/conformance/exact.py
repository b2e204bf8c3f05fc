"""Every rule once more, in exact arithmetic and without a line of offbeat: the source of the traces' numbers.

A `Rule` follows the equations of its paper on vectors of fractions. `scripts.py` says what happens in each trace and
writes the files; the model after each step and the arithmetic in words come from here. Roots and powers are `math`'s.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

Vector = list[Fraction]


def vector(*values: Any) -> Vector:
    """A vector of fractions."""
    return [Fraction(value) for value in values]


def zero(like: Vector) -> Vector:
    """A vector of zeros."""
    return [Fraction(0)] * len(like)


def add(*terms: tuple[Any, Vector]) -> Vector:
    """The sum of factor times vector."""
    size = len(terms[0][1])
    return [sum((Fraction(factor) * each[i] for factor, each in terms), Fraction(0)) for i in range(size)]


def minus(one: Vector, other: Vector) -> Vector:
    """The difference of two vectors."""
    return add((1, one), (-1, other))


def dot(one: Vector, other: Vector) -> Fraction:
    """The inner product."""
    return sum((a * b for a, b in zip(one, other, strict=True)), Fraction(0))


def power(base: Any, exponent: float) -> Fraction:
    """base ^ exponent, exact if the result is rational with small terms."""
    close = Fraction(float(base) ** exponent).limit_denominator(1000)
    return close if abs(float(close) - float(base) ** exponent) < 1e-15 else Fraction(float(base) ** exponent)


def root(value: Any) -> Fraction:
    """The square root."""
    value = Fraction(value)
    above, below = math.isqrt(value.numerator), math.isqrt(value.denominator)
    if above**2 == value.numerator and below**2 == value.denominator:
        return Fraction(above, below)
    return Fraction(math.sqrt(value))


def show(value: Any) -> str:
    """A number or vector as a person writes it."""
    if isinstance(value, list):
        return "[" + ", ".join(map(show, value)) + "]"
    value = Fraction(value)
    return str(value) if value.denominator <= 2000 else f"{float(value):.6g}"


@dataclass
class Sent:
    """An upload: the device, its base, and the models at both ends."""

    device: int
    base: int
    model: Vector
    origin: Vector
    staleness: int
    samples: int
    slices: int | None = None

    @property
    def delta(self) -> Vector:
        """The movement from the upload's own base."""
        return minus(self.model, self.origin)


@dataclass
class Rule:
    """A rule: the model, its versions, and what the last step did."""

    settings: dict[str, Any]
    w: Vector
    samples: list[int]
    local: dict[str, Any] = field(default_factory=dict)
    speeds: list[float] | None = None
    horizon: float = 0.0
    versions: list[Vector] = field(default_factory=list)
    discarded: bool = False
    stopped: list[int] = field(default_factory=list)
    why: str = ""
    kept: list[Sent] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.versions = [self.w]
        self.begin()

    def begin(self) -> None:
        """Set the rule's own state."""

    def __getattr__(self, name: str) -> Any:  # a setting by its name
        if name.startswith("__") or name not in self.__dict__["settings"]:
            raise AttributeError(name)
        value = self.__dict__["settings"][name]
        return Fraction(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else value

    @property
    def n(self) -> int:
        """Number of devices."""
        return len(self.samples)

    @property
    def version(self) -> int:
        """Versions made so far."""
        return len(self.versions) - 1

    def commit(self, model: Vector, why: str) -> None:
        """Make a version."""
        self.w, self.why = model, why
        self.versions.append(model)

    def wait(self, why: str) -> None:
        """Change nothing."""
        self.why = why

    def drop(self, why: str) -> None:
        """Discard the upload."""
        self.discarded, self.why = True, why

    def upload(self, sent: Sent) -> None:
        """React to an upload."""
        raise NotImplementedError

    def timer(self) -> None:
        """React to a timer."""
        raise NotImplementedError

    def lost(self, device: int) -> None:
        """React to the loss of a device."""
        self.wait(f"device {device} is replaced, no update is used")


# Rounds ---------------------------------------------------------------------------------------------------------------


class FedAvg(Rule):
    """w <- sum n_k/n w_k over the round; a server optimiser may take the step."""

    def begin(self) -> None:
        self.open = int(self.cohort)
        self.first: Vector = []
        self.second: Vector = []

    def upload(self, sent: Sent) -> None:
        if sent.slices == 0:
            self.drop("no epoch was finished: nothing to average")
        else:
            self.kept.append(sent)
            self.wait("the round waits for the other devices")
        self.close()

    def lost(self, device: int) -> None:
        self.wait("the round goes on without the device")
        self.close()

    def close(self) -> None:
        self.open -= 1
        if self.open:
            return
        self.open = int(self.cohort)
        if self.kept:
            why = self.why if self.discarded else ""
            self.commit(*self.mean())
            self.why = f"{why}; {self.why}" if why else self.why
            self.kept = []

    def weights(self) -> list[Fraction]:
        total = sum(each.samples for each in self.kept)
        return [Fraction(each.samples, total) for each in self.kept]

    def mean(self) -> tuple[Vector, str]:
        weights = self.weights()
        mean = add(*((p, each.model) for p, each in zip(weights, self.kept, strict=True)))
        terms = " + ".join(f"{show(p)} {show(each.model)}" for p, each in zip(weights, self.kept, strict=True))
        return self.server(mean, f"{terms} = {show(mean)}")

    def server(self, mean: Vector, why: str) -> tuple[Vector, str]:
        kind, delta = self.settings.get("server_optimiser", "none"), minus(mean, self.w)
        if kind == "none":
            return mean, why
        eta, beta = self.server_learning_rate, self.server_momentum
        before = self.first or zero(self.w)
        if kind == "momentum":
            self.first = add((beta, before), (1, delta))
            why = f"mean {show(mean)}, m = {show(beta)} {show(before)} + {show(delta)} = {show(self.first)}"
            return add((1, self.w), (eta, self.first)), f"{why}; w + {show(eta)} m"
        tau, square = self.server_epsilon, [each * each for each in delta]
        old = self.second or [tau**2] * len(delta)
        self.first = add((beta, before), (1 - beta, delta))
        if kind == "adagrad":
            self.second, rule = add((1, old), (1, square)), "v + D^2"
        elif kind == "adam":
            self.second, rule = add((self.server_decay, old), (1 - self.server_decay, square)), "b2 v + (1 - b2) D^2"
        else:
            signs = [Fraction((a > b) - (a < b)) for a, b in zip(old, square, strict=True)]
            step = [a * b for a, b in zip(square, signs, strict=True)]
            self.second, rule = add((1, old), (self.server_decay - 1, step)), "v - (1 - b2) D^2 sign(v - D^2)"
        step = [m / (root(v) + tau) for m, v in zip(self.first, self.second, strict=True)]
        why = f"D = {show(delta)}, m = b1 m + (1 - b1) D = {show(self.first)}, v = {rule} = {show(self.second)}"
        return add((1, self.w), (eta, step)), f"{why}, from v = tau^2; w + {show(eta)} m / (sqrt(v) + tau)"


class FedDyn(FedAvg):
    """w <- mean w_k + h, h += (1/m) sum (w_k - w_o) over all m devices."""

    def begin(self) -> None:
        super().begin()
        self.h = zero(self.w)

    def weights(self) -> list[Fraction]:
        return [Fraction(1, len(self.kept))] * len(self.kept)

    def server(self, mean: Vector, why: str) -> tuple[Vector, str]:
        self.h = add((1, self.h), *((Fraction(1, self.n), each.delta) for each in self.kept))
        return add((1, mean), (1, self.h)), f"mean {why}; h = {show(self.h)}, over all {self.n} devices; mean + h"


class FedLWS(FedAvg):
    """w <- gamma w^, gamma = |w| / (|w| + tau |w^ - w|), tau = clip(beta mean |g_k - g|)."""

    def server(self, mean: Vector, why: str) -> tuple[Vector, str]:
        moves = [minus(each.model, self.w) for each in self.kept]
        centre = add(*((Fraction(1, len(moves)), each) for each in moves))
        spread = sum(root(dot(d, d)) for d in (minus(each, centre) for each in moves)) / len(moves)
        tau = min(max(self.shrinking * spread, self.least), self.most)
        norm, step = root(dot(self.w, self.w)), root(dot(minus(mean, self.w), minus(mean, self.w)))
        gamma = norm / (norm + tau * step)
        why += f"; spread {show(spread)}, tau {show(tau)}, gamma = {show(norm)} / ({show(norm)} + {show(tau)} * "
        return add((gamma, mean)), why + f"{show(step)}) = {show(gamma)}"


class FedStale(FedAvg):
    """w += sum_S p/q D + beta (sum_notS p h + sum_S (p - p/q) h)."""

    def begin(self) -> None:
        super().begin()
        self.h: dict[int, Vector] = {}
        self.rounds, self.reports = 0, dict[int, int]()

    def mean(self) -> tuple[Vector, str]:
        self.rounds += 1
        total, move, parts = sum(self.samples), zero(self.w), []
        here = {each.device: each for each in self.kept}
        for device in here:
            self.reports[device] = self.reports.get(device, 0) + 1
        for device in range(self.n):
            p, h = Fraction(self.samples[device], total), self.h.get(device, zero(self.w))
            if device in here:
                estimated = Fraction(self.reports[device], self.rounds)
                q = estimated if self.participation == "estimated" else self.cohort / self.n
                move = add((1, move), (p / q, here[device].delta), (self.beta * (p - p / q), h))
                parts.append(f"device {device}: {show(p / q)} {show(here[device].delta)}")
                if any(h):
                    parts[-1] += f" + {show(self.beta)} ({show(p)} - {show(p / q)}) {show(h)}"
            elif any(h):
                move = add((1, move), (self.beta * p, h))
                parts.append(f"device {device} absent: {show(self.beta)} * {show(p)} {show(h)}")
        self.h |= {device: each.delta for device, each in here.items()}
        rate = self.server_learning_rate
        return add((1, self.w), (rate, move)), f"{show(self.w)} + {show(rate)} ({'; '.join(parts)})"


# One upload, one version ----------------------------------------------------------------------------------------------


class Refl(Rule):
    """Rounds that end with a share of their devices; stale updates count by staleness and distance."""

    def begin(self) -> None:
        self.flying, self.fresh = 0, 0
        self.order()

    def order(self) -> None:
        self.fresh = int(self.cohort) - self.flying
        self.wanted = math.ceil(self.target * self.fresh)
        self.flying += self.fresh

    def upload(self, sent: Sent) -> None:
        self.kept.append(sent)
        self.flying -= 1
        self.fresh -= sent.base == self.version
        new = [each for each in self.kept if each.base == self.version]
        if new and (len(new) >= self.wanted or not self.fresh):
            self.commit(*self.aggregate(new))
            self.kept = []
        elif new or self.fresh:
            self.wait(f"{len(new)} of {self.wanted} fresh updates")
            return
        self.order()

    def aggregate(self, new: list[Sent]) -> tuple[Vector, str]:
        mean = add(*((Fraction(1, len(new)), each.delta) for each in new))
        stale = [each for each in self.kept if each.base < self.version]
        off = {id(each): dot(minus(each.delta, mean), minus(each.delta, mean)) for each in stale}
        most, weights, terms = max(off.values(), default=Fraction(0)), [], []
        for each in self.kept:
            weight, words = Fraction(1), "1"
            if id(each) in off:
                share = off[id(each)] / most if most else Fraction(0)
                weight = (1 - self.beta) / (self.version - each.base + 1)
                weight += self.beta * (1 - Fraction(math.exp(-share)) / 10)
                words = f"((1 - {show(self.beta)})/{self.version - each.base + 1} + {show(self.beta)} (1 - "
                words += f"exp(-{show(share)})/10))"
            weights.append(weight)
            terms.append(f"{words} {show(each.delta)}")
        total = sum(weights)
        move = add(*((weight / total, each.delta) for weight, each in zip(weights, self.kept, strict=True)))
        why = f"{show(self.w)} + ({' + '.join(terms)}) / {show(total)}"
        return add((1, self.w), (1, move)), why


class FedAsync(Rule):
    """w <- (1 - a_t) w + a_t w_k, a_t = alpha s(staleness)."""

    def begin(self) -> None:
        self.product = Fraction(1)

    def scale(self, s: int) -> tuple[Fraction, str]:
        match self.settings.get("staleness", "polynomial"):
            case "constant":
                return Fraction(1), "1"
            case "hinge" if s <= self.grace:
                return Fraction(1), f"1, as {s} <= {show(self.grace)}"
            case "hinge":
                return 1 / (
                    self.slope * (s - self.grace) + 1
                ), f"1 / ({show(self.slope)} ({s} - {show(self.grace)}) + 1)"
        return power(s + 1, -float(self.exponent)), f"({s} + 1)^-{show(self.exponent)}"

    def upload(self, sent: Sent) -> None:
        scale, words = self.scale(sent.staleness)
        if self.settings.get("compounding"):
            scale = self.product = self.product * scale
            words = f"{words}, times all earlier ones"
        alpha = self.alpha * scale
        why = f"a = {show(self.alpha)} * {words} = {show(alpha)}; (1 - a) {show(self.w)} + a {show(sent.model)}"
        self.commit(add((1 - alpha, self.w), (alpha, sent.model)), why)


class AsoFed(Rule):
    """w <- w - n_k/n (old copy - new copy)."""

    def begin(self) -> None:
        self.copies: dict[int, Vector] = {}

    def upload(self, sent: Sent) -> None:
        p, before = Fraction(sent.samples, sum(self.samples)), self.copies.get(sent.device, self.versions[0])
        self.copies[sent.device] = sent.model
        why = f"{show(self.w)} - {show(p)} ({show(before)} - {show(sent.model)}), the device's last and new model"
        self.commit(add((1, self.w), (-p, before), (p, sent.model)), why)


class DelayAdaptive(Rule):
    """w += eta min(1, C / max(1, tau)) Delta."""

    def upload(self, sent: Sent) -> None:
        c, eta = int(self.concurrency), self.server_learning_rate
        if sent.staleness > c and self.settings.get("beyond") == "drop":
            self.drop(f"delay {sent.staleness} is above C = {c}")
            return
        factor = eta * min(Fraction(1), Fraction(c, max(1, sent.staleness)))
        why = f"{show(self.w)} + {show(eta)} min(1, {c} / {max(1, sent.staleness)}) {show(sent.delta)}"
        self.commit(add((1, self.w), (factor, sent.delta)), why)


class Ringmaster(Rule):
    """w += eta Delta if the delay is below R."""

    def upload(self, sent: Sent) -> None:
        k = self.version
        own = self.settings["threshold"] == "sqrt"
        limit = max(1, math.isqrt(k)) if own else int(self.threshold)
        if sent.staleness >= limit:
            self.drop(f"delay {sent.staleness} >= R = {limit}: ignored")
        else:
            eta = self.server_learning_rate * (power(k + 1, -0.75) if own else 1)
            decay = f" / {k + 1}^0.75" if own else ""
            why = f"delay {sent.staleness} < R = {limit}: {show(self.w)} + {show(self.server_learning_rate)}{decay} "
            self.commit(add((1, self.w), (eta, sent.delta)), why + show(sent.delta))


class RingmasterStop(Ringmaster):
    """Devices whose delay reaches R are told to stop."""

    def begin(self) -> None:
        self.bases, self.told = dict.fromkeys(range(self.n), 0), set[int]()

    def upload(self, sent: Sent) -> None:
        super().upload(sent)
        self.told.discard(sent.device)
        del self.bases[sent.device]
        late = {d for d, base in self.bases.items() if self.version - base >= self.threshold}
        self.stopped = sorted(late - self.told)
        self.told |= late
        self.bases[sent.device] = self.version
        self.why += "".join(f"; device {device} has reached R and is told to stop" for device in self.stopped)


class Ace(Rule):
    """w += (eta / n) sum of the latest movements of all devices."""

    def begin(self) -> None:
        self.latest: dict[int, Sent] = {}

    def upload(self, sent: Sent) -> None:
        self.latest[sent.device] = sent
        divisor, gone = self.n, ""
        if "max_age" in self.settings:
            newest = max(each.base for each in self.latest.values())
            old = [d for d, e in self.latest.items() if self.version - e.base > self.max_age and e.base < newest]
            gone = "".join(f"; device {d} is too old" for d in old)
            for device in old:
                del self.latest[device]
            divisor = len(self.latest)
        moves = [self.latest[device].delta for device in sorted(self.latest)]
        total, eta = add(*((1, each) for each in moves)), self.server_learning_rate
        why = f"{show(self.w)} + {show(eta)} / {divisor} ({' + '.join(map(show, moves))}){gone}"
        self.commit(add((1, self.w), (eta / divisor, total)), why)


class FedFa(Rule):
    """w <- mean of the last K models."""

    def upload(self, sent: Sent) -> None:
        self.kept = [*self.kept, sent][-int(self.queue) :]
        share = Fraction(1, len(self.kept))
        models, count = " + ".join(show(each.model) for each in self.kept), len(self.kept)
        why = f"mean of the last {count}: ({models}) / {count}"
        self.commit(add(*((share, each.model) for each in self.kept)), why)


class DelayedNesterov(Rule):
    """w -= eps g / N; every N-th upload also m <- beta m + mean g, w -= eps beta m."""

    def begin(self) -> None:
        self.m = zero(self.w)

    def upload(self, sent: Sent) -> None:
        self.kept.append(sent)
        eps, size = self.server_learning_rate, int(self.buffer)
        model = add((1, self.w), (eps / size, sent.delta))
        why = f"{show(self.w)} + {show(eps)} / {size} {show(sent.delta)}"
        if len(self.kept) == size:
            mean = add(*((Fraction(1, size), each.delta) for each in self.kept))
            self.m = add((self.momentum, self.m), (1, mean))
            model = add((1, model), (eps * self.momentum, self.m))
            why += f" + {show(eps)} * {show(self.momentum)} m, m = {show(self.m)}: the {size}th upload"
            self.kept = []
        self.commit(model, why)


class FedASMU(Rule):
    """w <- (1 - alpha) w + alpha w_i, alpha = mu xi / (1 + mu xi), with control parameters that adapt."""

    def begin(self) -> None:
        self.control: dict[int, tuple[Fraction, Fraction, Fraction]] = {}
        self.made: dict[int, tuple[Vector, Any, Fraction, int, int]] = {}

    def turn(self) -> int:
        return self.version

    def timer(self) -> None:
        self.wait("idle devices are ordered, nothing is aggregated")

    def fresh(self, device: int) -> None:
        self.wait(f"device {device} is sent the current model")

    def upload(self, sent: Sent) -> None:
        t, s, mu, adapted = max(self.turn(), 1), sent.staleness + 1, self.mu_alpha, ""
        if s > self.staleness_bound:
            self.drop(f"staleness {s} is above {show(self.staleness_bound)}")
            return
        lam, sigma, iota = self.control.get(sent.device, (self.lambda_0, self.sigma_0, self.iota_0))
        if self.settings["dynamic_weights"] and sent.base in self.made:
            u, (lam1, sigma1, _), xi1, t1, s1 = self.made[sent.base]
            eta = Fraction(str(self.local["learning_rate"]))
            slope = -dot(sent.delta, u) / eta * mu / (1 + mu * xi1) ** 2
            decay = 1 / (root(t1) * power(s1, float(sigma1)))
            lam = max(lam - self.eta_lambda * slope * decay, Fraction(0))
            sigma = max(sigma + self.eta_sigma * slope * lam1 * Fraction(math.log(s1)) * decay, Fraction(0))
            iota = max(iota - self.eta_iota * slope, Fraction(0))
            adapted = (
                f"base {sent.base} was made with u = {show(u)}, xi' = {show(xi1)}: d loss / d xi = {show(slope)}, "
            )
            adapted += f"lambda, sigma, iota = {show(lam)}, {show(sigma)}, {show(iota)}; "
        self.control[sent.device] = lam, sigma, iota
        xi = lam / (root(t) * power(s, float(sigma))) + iota
        alpha = mu * xi / (1 + mu * xi)
        self.made[self.version + 1] = minus(sent.model, self.w), (lam, sigma, iota), xi, t, s
        why = f"{adapted}xi = {show(lam)} / (sqrt({t}) * {s}^{show(sigma)}) + {show(iota)} = {show(xi)}, "
        why += f"alpha = {show(alpha)}; (1 - alpha) {show(self.w)} + alpha {show(sent.model)}"
        self.commit(add((1 - alpha, self.w), (alpha, sent.model)), why)


class FedSSMU(FedASMU):
    """FedASMU's weights with the round r for the version t."""

    def begin(self) -> None:
        super().begin()
        self.uploads = 0

    def turn(self) -> int:
        self.uploads += 1
        return (self.uploads - 1) // int(self.cohort) + 1


# Buffers --------------------------------------------------------------------------------------------------------------


class Buffered(Rule):
    """A version from every K uploads."""

    def upload(self, sent: Sent) -> None:
        self.kept.append(sent)
        if len(self.kept) < self.buffer:
            self.wait(f"{len(self.kept)} of {show(self.buffer)} uploads in the buffer")
            return
        uploads, self.kept = self.kept, []
        self.commit(*self.aggregate(uploads))

    def aggregate(self, uploads: list[Sent]) -> tuple[Vector, str]:
        raise NotImplementedError

    def along(self, uploads: list[Sent], weights: list[tuple[Fraction, str]]) -> tuple[Vector, str]:
        """w + eta sum weight delta."""
        eta = self.settings.get("server_learning_rate", 1)
        move = add(*((p, each.delta) for (p, _), each in zip(weights, uploads, strict=True)))
        terms = " + ".join(f"{words} {show(each.delta)}" for (_, words), each in zip(weights, uploads, strict=True))
        factor = "" if eta == 1 else f"{show(Fraction(str(eta)))} "
        return add((1, self.w), (Fraction(str(eta)), move)), f"{show(self.w)} + {factor}({terms})"


class FedBuff(Buffered):
    """w += eta / K sum s(tau) Delta, s = 1 / sqrt(1 + tau); or Plato's mean of the models."""

    def aggregate(self, uploads: list[Sent]) -> tuple[Vector, str]:
        count = len(uploads)
        if self.settings.get("variant") == "plato":
            moved = [Sent(e.device, e.base, e.model, self.w, 0, e.samples) for e in uploads]
            return self.along(moved, [(Fraction(1, count), f"1/{count}")] * count)
        scales = [1 / root(1 + each.staleness) for each in uploads]
        divisor = sum(scales) if self.settings.get("normaliser") == "weights" else Fraction(count)
        words = [f"1/sqrt(1+{each.staleness}) / {show(divisor)}" for each in uploads]
        return self.along(uploads, [(s / divisor, word) for s, word in zip(scales, words, strict=True)])


class Auto(Buffered):
    """FedBuff's rule with a step that follows the agreement of updates with the steps that made their bases."""

    def begin(self) -> None:
        self.eta = 1.0
        self.common: Fraction | None = None

    def aggregate(self, uploads: list[Sent]) -> tuple[Vector, str]:
        count, deltas = len(uploads), [each.delta for each in uploads]
        mean = add(*((Fraction(1, count), each) for each in deltas))
        found = (count * dot(mean, mean) - sum((dot(each, each) for each in deltas), Fraction(0)) / count) / (count - 1)
        found = max(Fraction(0), found)
        self.common = common = found if self.common is None else (9 * self.common + found) / 10
        cosines = []
        for each in uploads:
            step = minus(self.versions[each.base], self.versions[each.base - 1]) if each.base else None
            if step is not None and common * dot(step, step):
                cosines.append(dot(each.delta, step) / root(common * dot(step, step)))
        if cosines:
            c = max(-1.0, min(1.0, float(sum(cosines) / len(cosines))))
            rate = (0.5 if c > 0 else 1.0) * count / float(self.concurrency)
            self.eta = max(0.1, min(5.0, self.eta * math.exp(rate * c)))
        scales = [1 / root(1 + each.staleness) for each in uploads]
        move = add(*((s / count, each) for s, each in zip(scales, deltas, strict=True)))
        terms = " + ".join(f"1/sqrt(1+{each.staleness}) {show(each.delta)}" for each in uploads)
        return add((1, self.w), (self.eta, move)), f"{show(self.w)} + {self.eta:.4f} / {count} ({terms})"


class FedStaleWeight(Buffered):
    """Weights proportional to K tau + 1."""

    def aggregate(self, uploads: list[Sent]) -> tuple[Vector, str]:
        weights = [self.buffer * each.staleness + 1 for each in uploads]
        return self.along(uploads, [(w / sum(weights), f"{show(w)}/{show(sum(weights))}") for w in weights])


class Rennala(Buffered):
    """The mean of B movements from the current version."""

    def upload(self, sent: Sent) -> None:
        if sent.staleness:
            self.drop(f"from version {sent.base}, not from the current one")
        else:
            super().upload(sent)

    def aggregate(self, uploads: list[Sent]) -> tuple[Vector, str]:
        return self.along(uploads, [(Fraction(1, len(uploads)), f"1/{len(uploads)}")] * len(uploads))


class Ca2fl(Buffered):
    """w += eta (h + S / K), S = sum (Delta_i - h_i), then h = mean of the cache."""

    def begin(self) -> None:
        self.cache: dict[int, Vector] = {}
        self.h = zero(self.w)

    def aggregate(self, uploads: list[Sent]) -> tuple[Vector, str]:
        total, terms = zero(self.w), []
        for each in uploads:
            before = self.cache.get(each.device, zero(self.w))
            total = add((1, total), (1, each.delta), (-1, before))
            terms.append(f"{show(each.delta)} - {show(before)}")
            self.cache[each.device] = each.delta
        eta, h, size = self.server_learning_rate, self.h, len(uploads)
        model = add((1, self.w), (eta, h), (eta / size, total))
        self.h = add((0, self.w), *((Fraction(1, self.n), each) for each in self.cache.values()))
        changes = " + ".join(f"({term})" for term in terms)
        return model, f"h = {show(h)}, S = {changes}; {show(self.w)} + {show(eta)} (h + S / {size})"


class Fadas(Buffered):
    """AMSGrad on the mean movement, with a step that shrinks with the largest staleness."""

    def begin(self) -> None:
        self.m, self.v, self.u = zero(self.w), zero(self.w), zero(self.w)

    def aggregate(self, uploads: list[Sent]) -> tuple[Vector, str]:
        delta = add(*((Fraction(1, len(uploads)), each.delta) for each in uploads))
        t, b1, b2, worst = self.version + 1, self.beta_1, self.beta_2, max(each.staleness for each in uploads)
        self.m = add((b1, self.m), (1 - b1, delta))
        self.v = add((b2, self.v), (1 - b2, [each * each for each in delta]))
        self.u = [max(a, b) for a, b in zip(self.u, self.v, strict=True)]
        eta, words = self.server_learning_rate, show(self.server_learning_rate)
        if worst > self.delay_threshold and self.delay_step == "code":
            eta, words = eta / worst, f"{words} / {worst}"
        elif worst > self.delay_threshold and self.delay_step == "paper":
            eta, words = min(eta, Fraction(1, worst)), f"min({words}, 1/{worst})"
        step = [
            eta / (1 - b1**t) * m / (root(u) / root(1 - b2**t) + self.epsilon)
            for m, u in zip(self.m, self.u, strict=True)
        ]
        why = f"D = {show(delta)}, m = {show(self.m)}, v = {show(self.v)}, u = {show(self.u)}, "
        why += f"largest staleness {worst}: "
        why += f"w + {words} / (1 - b1^{t}) m / (sqrt(u) / sqrt(1 - b2^{t}) + eps)"
        return add((1, self.w), (1, step)), why


class Area(Buffered):
    """w += (1/n) sum (w_k - last model of k)."""

    def begin(self) -> None:
        self.copies: dict[int, Vector] = {}

    def aggregate(self, uploads: list[Sent]) -> tuple[Vector, str]:
        move, terms = zero(self.w), []
        for each in uploads:
            before = self.copies.get(each.device, self.versions[0])
            move = add((1, move), (1, each.model), (-1, before))
            terms.append(f"{show(each.model)} - {show(before)}")
            self.copies[each.device] = each.model
        factor = self.server_learning_rate / self.n
        return add((1, self.w), (factor, move)), f"{show(self.w)} + 1/{self.n} ({' + '.join(terms)}): n, not K"


class Seafl(Rule):
    """K uploads, none in training at the staleness limit: w <- (1 - theta) w + theta sum p_k w_k."""

    def begin(self) -> None:
        self.training = dict.fromkeys(range(int(self.concurrency)), 0)
        self.last_step: Vector | None = None

    def upload(self, sent: Sent) -> None:
        del self.training[sent.device]
        self.kept.append(sent)
        limit = self.staleness_limit
        late = [device for device, base in self.training.items() if self.version + 1 - base > limit]
        if self.training and (len(self.kept) < self.buffer or late):
            late_words = f"device {late[0]} is at the staleness limit: the server waits for it" if late else ""
            self.wait(late_words or f"{len(self.kept)} of {show(self.buffer)} uploads in the buffer")
            return
        uploads, self.kept = self.kept, []
        before = self.w
        self.commit(*self.aggregate(uploads))
        self.last_step = minus(self.w, before)
        self.training |= {each.device: self.version for each in uploads}
        self.after()

    def after(self) -> None:
        """Nothing: SEAFL waits for late devices."""

    def cosine(self, sent: Sent) -> Fraction:
        """Of the movement and the global model; 1 if one is zero."""
        return self.angle(sent.delta, self.w)

    def angle(self, one: Vector, other: Vector) -> Fraction:
        lengths = root(dot(one, one)) * root(dot(other, other))
        return dot(one, other) / lengths if lengths else Fraction(1)

    def weights(self, uploads: list[Sent]) -> tuple[list[Fraction], str]:
        limit, raw, words = self.staleness_limit, [], []
        for each in uploads:
            fresh, cos = self.staleness_weight * limit / (each.staleness + limit), self.cosine(each)
            raw.append(each.samples * (fresh + self.similarity_weight * (cos + 1) / 2))
            likeness = f"{show(self.similarity_weight)} ({show(cos)} + 1) / 2"
            words.append(f"{each.samples} ({show(fresh)} + {likeness})")
        return [each / sum(raw) for each in raw], f"p ~ {', '.join(words)}"

    def aggregate(self, uploads: list[Sent]) -> tuple[Vector, str]:
        (p, words), theta = self.weights(uploads), self.mixing
        mean = add(*((weight, each.model) for weight, each in zip(p, uploads, strict=True)))
        terms = " + ".join(f"{show(weight)} {show(each.model)}" for weight, each in zip(p, uploads, strict=True))
        why = f"{words}; {show(1 - theta)} {show(self.w)} + {show(theta)} ({terms})"
        return add((1 - theta, self.w), (theta, mean)), why


class Seafl2(Seafl):
    """SEAFL that stops devices at the limit."""

    def after(self) -> None:
        self.stopped = [d for d, base in self.training.items() if self.version + 1 - base > self.staleness_limit]
        if self.stopped:
            self.why += f"; device {self.stopped[0]} is at the staleness limit and told to stop"


class Port(Seafl2):
    """w += theta sum p_k Delta_k; cosine with the last step, 1 up to staleness 1."""

    def cosine(self, sent: Sent) -> Fraction:
        if sent.staleness <= 1 or self.last_step is None:
            return Fraction(1)
        return self.angle(sent.delta, self.last_step)

    def aggregate(self, uploads: list[Sent]) -> tuple[Vector, str]:
        (p, words), theta = self.weights(uploads), self.mixing
        move = add(*((weight, each.delta) for weight, each in zip(p, uploads, strict=True)))
        terms = " + ".join(f"{show(weight)} {show(each.delta)}" for weight, each in zip(p, uploads, strict=True))
        return add((1, self.w), (theta, move)), f"{words}; {show(self.w)} + {show(theta)} ({terms})"


class Safa(Rule):
    """Rounds that pick ceil(C m) uploads; w <- sum n_k/n cache_k over all devices."""

    def begin(self) -> None:
        self.cache = dict.fromkeys(range(self.n), self.w)
        self.bases = dict.fromkeys(range(self.n), 0)
        self.picked: set[int] = set()
        self.late: set[int] = set()
        self.quota = math.ceil(round(float(self.share) * self.n, 9))

    def upload(self, sent: Sent) -> None:
        del self.bases[sent.device]
        if sent.device in self.late:
            self.late.remove(sent.device)
            self.drop(f"deprecated: device {sent.device} starts again, its cache entry becomes {show(self.w)}")
            self.cache[sent.device] = self.w
            self.bases[sent.device] = self.version
            return
        self.kept.append(sent)
        new = [each for each in self.kept if each.device not in self.picked]
        if len(new) < self.quota and self.bases:
            self.wait("picked last round: the round waits for a device that was not")
            return
        ranked = new + [each for each in self.kept if each.device in self.picked]
        chosen, rest = ranked[: self.quota], ranked[self.quota :]
        self.cache |= {each.device: each.model for each in chosen}
        total = sum(self.samples)
        shares = [Fraction(each, total) for each in self.samples]
        terms = " + ".join(f"{show(share)} {show(self.cache[device])}" for device, share in enumerate(shares))
        after = "".join(f"; {show(each.model)} enters the cache after that" for each in rest)
        self.commit(
            add(*((share, self.cache[device]) for device, share in enumerate(shares))), f"cache: {terms}{after}"
        )
        self.cache |= {each.device: each.model for each in rest}
        self.picked = {each.device for each in chosen}
        self.bases |= {each.device: self.version for each in self.kept}
        self.kept = []
        self.stopped = [d for d, base in self.bases.items() if self.version - base > self.lag_tolerance]
        self.late |= set(self.stopped)


class Ringleader(Rule):
    """Rounds to which every device contributes, one step per device along the mean of all."""

    def begin(self) -> None:
        self.table: dict[int, list[Vector]] = {}
        self.following: dict[int, list[Vector]] = {}
        self.served: set[int] | None = None

    def upload(self, sent: Sent) -> None:
        if self.served is not None and sent.device in self.served:
            self.following.setdefault(sent.device, []).append(sent.delta)
            self.wait("the device has had its turn: its movement counts in the next round")
        else:
            self.table.setdefault(sent.device, []).append(sent.delta)
            if self.served is not None:
                self.step("the device's turn: ")
                self.served.add(sent.device)
            else:
                self.wait("phase 1: no version before every device has reported")
        if self.served is not None and len(self.served) == self.n:
            self.table, self.following, self.served = self.following, {}, None
            self.why += "; the round is over"
        if self.served is None and len(self.table) == self.n:
            self.step("every device has reported: ")
            self.served = {sent.device}

    def step(self, words: str) -> None:
        means = [add(*((Fraction(1, len(own)), each) for each in own)) for _, own in sorted(self.table.items())]
        eta, count = self.server_learning_rate, len(means)
        why = f"{words}{show(self.w)} + {show(eta)} / {count} ({' + '.join(map(show, means))})"
        self.commit(add((1, self.w), *((eta / count, each) for each in means)), why)


class FedCompass(Rule):
    """The first upload of a device alone, then groups: w <- (1 - sum a) w + sum a w_i, a = alpha / n st(staleness)."""

    def begin(self) -> None:
        self.known: set[int] = set()

    def upload(self, sent: Sent) -> None:
        group = sent.device in self.known
        self.known.add(sent.device)
        self.kept.append(sent)
        if group and len(self.kept) < self.n:
            self.wait("the group waits for its other device")
            return
        uploads, self.kept = self.kept, []
        shares = []
        for each in uploads:
            late = self.version - each.base
            shares.append((self.alpha / self.n * power(late + 1, -float(self.exponent)), each.model))
        rest = 1 - sum(share for share, _ in shares)
        why = f"{show(rest)} {show(self.w)} + " + " + ".join(f"{show(a)} {show(model)}" for a, model in shares)
        self.commit(add((rest, self.w), *shares), why)


# Iterations and deadlines ---------------------------------------------------------------------------------------------


class Audg(Rule):
    """w += sum over the uploads of the iteration of lambda_i movement_i, at the current learning rate."""

    def rate(self, version: int) -> Fraction:
        inverse = self.local.get("schedule") == "inverse"
        return Fraction(1, 1 + version) if inverse else Fraction(1)

    def upload(self, sent: Sent) -> None:
        self.kept.append(sent)
        self.wait("counts at the end of the iteration")

    def contributions(self) -> list[Sent]:
        uploads, self.kept = self.kept, []
        return uploads

    def timer(self) -> None:
        used = sorted(self.contributions(), key=lambda each: each.device)
        if not used:
            self.wait("nothing was delivered: no version")
            return
        move, terms, total = zero(self.w), [], sum(self.samples)
        for each in used:
            p, ratio = Fraction(each.samples, total), self.rate(self.version) / self.rate(each.base)
            move = add((1, move), (p * ratio, each.delta))
            scaled = "" if ratio == 1 else f" * {show(ratio)}, the ratio of the learning rates,"
            terms.append(f"{show(p)}{scaled} {show(each.delta)}")
        self.commit(add((1, self.w), (1, move)), f"{show(self.w)} + {' + '.join(terms)}")


class Sfl(Audg):
    """AUDG that waits for every device."""

    def timer(self) -> None:
        if len(self.kept) < self.n:
            self.wait("a device is still in training: one more iteration")
        else:
            super().timer()


class Psurdg(Audg):
    """AUDG with the latest delivered movement of every device."""

    def begin(self) -> None:
        self.latest: dict[int, Sent] = {}

    def contributions(self) -> list[Sent]:
        self.latest |= {each.device: each for each in self.kept}
        self.kept = []
        return list(self.latest.values())


class Deadline(Rule):
    """Layer-wise rounds of one number per layer; a device that completed k layers delivers the last k."""

    def upload(self, sent: Sent) -> None:
        self.kept.append(sent)
        self.wait("counts at the deadline")

    def missed(self) -> list[float]:
        """p of each layer: the probability that no device completes it, under exponential times."""
        layers, seconds = len(self.w), self.horizon / float(self.rounds)
        speeds = self.speeds or []
        batch = self.local.get("batch_size", 32)
        rates = [speed * seconds / min(batch, own) for speed, own in zip(speeds, self.samples, strict=True)]
        return [
            math.prod(sum(math.exp(-r) * r**k / math.factorial(k) for k in range(layers - layer)) for r in rates)
            for layer in range(layers)
        ]

    def timer(self) -> None:
        layers, model, words = len(self.w), list(self.w), []
        uploads, self.kept = self.kept, []
        whole = self.settings.get("algorithm") == "drop"
        for layer in range(layers):
            done = [e.model[layer] for e in uploads if (e.slices or layers) >= (layers if whole else layers - layer)]
            old = self.w[layer]
            if not done:
                words.append(f"layer {layer}: nobody delivered it")
                continue
            mean = sum(done, Fraction(0)) / len(done)
            match self.settings["variant"]:
                case "paper":
                    p = min(self.missed()[layer], 0.9 if self.settings.get("algorithm") == "salf" else 1.0)
                    model[layer] = (mean - Fraction(p) * old) / (1 - Fraction(p))
                    words.append(f"layer {layer}: ({show(mean)} - {p:.6g} * {show(old)}) / (1 - {p:.6g})")
                case "code" | "keep":
                    model[layer] = (sum(done, Fraction(0)) + (self.n - len(done)) * old) / self.n
                    total, others = " + ".join(map(show, done)), self.n - len(done)
                    words.append(f"layer {layer}: ({total} + {others} * {show(old)}) / {self.n}")
                case "mean":
                    model[layer] = mean
                    words.append(f"layer {layer}: mean {show(mean)} of the {len(done)} that finished")
        self.commit(model, "; ".join(words))


class WaitStragglers(FedAvg):
    """The unweighted mean of all devices."""

    def weights(self) -> list[Fraction]:
        return [Fraction(1, len(self.kept))] * len(self.kept)


class HeteroFL(Rule):
    """Element by element the mean over the devices whose submodel has the element."""

    def upload(self, sent: Sent) -> None:
        self.kept.append(sent)
        self.wait("counts at the deadline")

    def timer(self) -> None:
        model, words = list(self.w), []
        for element in range(len(self.w)):
            held = [each.model[element] for each in self.kept if element in self.settings["holds"][each.device]]
            if held:
                model[element] = sum(held, Fraction(0)) / len(held)
                words.append(f"element {element}: mean of {', '.join(map(show, held))}")
        self.kept = []
        self.commit(model, "; ".join(words))


RULES: dict[str, Callable[..., Rule]] = {
    "fedavg": FedAvg, "fedprox": FedAvg, "moon": FedAvg, "feddyn": FedDyn, "fedlws": FedLWS, "fedasync": FedAsync,
    "aso-fed": AsoFed, "fedsa": FedAsync, "fedbuff": FedBuff, "fedasmu": FedASMU, "fedssmu": FedSSMU, "seafl": Seafl,
    "seafl2": Seafl2, "port": Port, "safa": Safa, "sfl": Sfl, "audg": Audg, "psurdg": Psurdg, "adel": Deadline,
    "salf": Deadline, "drop-stragglers": Deadline, "wait-stragglers": WaitStragglers, "heterofl": HeteroFL,
    "ca2fl": Ca2fl, "fadas": Fadas, "fadas-large-step": Fadas, "fedstaleweight": FedStaleWeight, "area": Area,
    "ringmaster": Ringmaster,
    "ringmaster-stop": RingmasterStop, "rennala": Rennala, "delay-adaptive": DelayAdaptive, "ace": Ace, "aced": Ace,
    "ringleader": Ringleader, "fedfa": FedFa, "delayed-nesterov": DelayedNesterov, "fedstale": FedStale,
    "fedvarp": FedStale, "fedcompass": FedCompass, "refl": Refl, "auto": Auto,
}  # fmt: skip
"""The rule of each algorithm."""
