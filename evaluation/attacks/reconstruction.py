"""The reconstruction game on a run: its requirements, the adversary's priors, bounds for any attack, and results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from itertools import islice, product
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.accountants.core.accountant import Accountant
from penstock.accountants.core.training import Training
from penstock.accountants.correlation.adversary import Learned
from penstock.accountants.inference.estimators import Estimator, attack_success
from penstock.accountants.inference.history import is_stationary, prepend_place, success_after_releases
from penstock.accountants.inference.observation import ADDITIVE
from penstock.accountants.inference.places import PlannedWindows, PriorPlaces, ReleaseForecast, Releasing
from penstock.accountants.inference.targets import KnownPrior, KnownTargets, known_targets, with_known_people
from penstock.accountants.markov import MarkovPrior
from penstock.accountants.reconstruction import Reconstruction
from penstock.evaluation.attacks.parameters import AttackedRun, ReconstructionGame
from penstock.evaluation.attacks.retracing import (
    Observed,
    Shown,
    UnknownPeople,
    count_correct,
    decode_trajectories,
    observe,
)
from penstock.evaluation.attacks.summaries import (
    BOUND,
    EXACT,
    KINDS,
    READERS,
    binomial_limits,
    summarize_reconstruction,
)
from penstock.evaluation.attacks.user_space import MOBILITY_GROUPS, draw_targets, mobility_groups
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import MECHANISMS, ChainStep
from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.mechanisms.core.run import step_through
from penstock.mechanisms.crowd_blending import CrowdBlending
from penstock.mechanisms.raw import Raw
from penstock.mechanisms.suppress_small import SuppressSmall

#: Estimators tried on simulated trajectories; the constant guess means something else there (`attack_success`).
SIMULATED: tuple[Estimator, ...] = ("map", "posterior_marginals", "prior")


@dataclass(frozen=True, eq=False)
class SuccessBounds:
    """Bounds for any attack on a segment, and success rates of attacks on trajectories simulated from a prior.

    The bound of a segment is `success_after_releases`. The place before it is distributed as the prior's marginal of
    its window, the walk having begun at the run's first window: the initial distribution where that is stationary, else
    the marginal after that many moves, which gives each segment a bound of its own. So the bound never understates,
    whatever the initial distribution. Simulated trajectories are attacked by an adversary who knows that place, who
    does no worse than one who reads earlier releases. A bound is computed once for each prior, initial distribution and
    schedule.
    """

    places: PriorPlaces
    observed: Observed  # releases; of a mechanism without noise they show which cells reveal a person
    planned: tuple[PlannedWindows, ...]  # each segment as known before its first window; none without noise
    training: int  # windows before the first segment
    horizon: int  # windows of a segment
    tolerance: int
    simulated: int  # trajectories of each prior; 0: none
    n_samples: int  # draws for the first-moment bound; below 2: without it
    adaptive: bool  # whether noise depends on earlier releases: then nothing is simulated
    seed: int
    _bounds: dict[tuple[object, ...], float] = field(default_factory=dict, init=False)

    def of(
        self, prior: MarkovPrior, trajectory: NDArray[np.intp], number: int, n: int | None = None
    ) -> tuple[float, dict[str, tuple[int, int]]]:
        """Compute the mean bound over segments, and each estimator's successes and trials on simulated trajectories.

        ``trajectory`` (n_windows,): the target's true places. ``number`` of the target, from 0, seeds the simulation.
        ``n``: of the first segments alone.
        """
        segments = self.planned
        if not segments:  # of a release without noise: the sensors whose values depend on the person
            revealed = ~np.isnan(self.observed.without_others(trajectory)[0, self.training :])
            sensors, step = [frozenset(self.places.sensors(window)) for window in revealed], self.horizon
            starts = range(0, len(sensors), step)
            segments = tuple(PlannedWindows(tuple(sensors[first : first + step])) for first in starts)
        n_each = -(-self.simulated // max(len(segments), 1))
        segments = segments[:n]
        bound = float(np.mean([self._bound(prior, place, coming) for place, coming in enumerate(segments)]))
        likely = not self.adaptive and all(coming.noise in (None, *ADDITIVE) for coming in segments)
        if not likely or self.simulated == 0:
            return bound, {}
        by_noise = {}
        for place, kind in enumerate(SIMULATED):
            rng = np.random.default_rng([self.seed, number, place])
            rates = [self._simulate(kind, prior, at, coming, n_each, rng) for at, coming in enumerate(segments)]
            by_noise[kind] = (round(sum(rates) * n_each), n_each * len(rates))
        return bound, {str(kind): successes for kind, successes in by_noise.items()}

    def _before(self, prior: MarkovPrior, segment: int) -> tuple[MarkovPrior, int]:
        """Return the prior that starts in the window before a segment, and that window (0 for a stationary prior)."""
        if is_stationary(prior):
            return prior, 0
        window = self.training + segment * self.horizon
        return MarkovPrior(prior.marginals(window)[-1], prior.transition), window

    def _bound(self, prior: MarkovPrior, segment: int, coming: PlannedWindows) -> float:
        before, window = self._before(prior, segment)
        scale = None if coming.scale is None else coming.scale.tobytes()
        key = (id(prior), window, coming.sensors, coming.noise, scale)
        if key not in self._bounds:
            self._bounds[key] = success_after_releases(before, coming, self.tolerance, self.n_samples, self.seed)
        return self._bounds[key]

    def _simulate(
        self,
        kind: Estimator,
        prior: MarkovPrior,
        segment: int,
        coming: PlannedWindows,
        n: int,
        rng: np.random.Generator,
    ) -> float:
        elsewhere = {self.places.n_locations - 1}  # not observed: it may be many cells
        coming = replace(coming, sensors=tuple(window - elsewhere for window in coming.sensors))
        before, window = self._before(prior, segment)
        if kind != "prior":
            coming = prepend_place(coming, prior.n_locations)
        elif window:
            before = MarkovPrior(before.initial @ before.transition, before.transition)
        return attack_success(kind, before, coming.sensors, self.tolerance, n, rng, coming.noise, coming.scale)[0]


ACCOUNTANT = "attack_reconstruction"
#: Milliseconds of an hour.
HOUR = 3_600_000
#: Values of all releases together, of which a few copies of 8 bytes are held: 1 GB.
MAX_VALUES = 40_000_000
#: Most visited cells that are places of their own, unless the configuration says otherwise.
PLACES = 200
#: Smoothings tried: where added moves go, and their weight.
TOWARDS, SMOOTHING = ("own", "population"), (0.1, 1.0, 10.0, 100.0)
#: Share of the training windows that the compared priors are learned from.
LEARNED_SHARE = 0.75


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A game's parameters after all defaults have been resolved."""

    horizon: int
    tolerance: int
    n_segments: int
    known: KnownPrior
    tunes: bool  # whether the adversary chooses the smoothing of her estimated prior
    share: float  # of other people whose cells are known

    @property
    def training(self) -> int:
        """The number of windows before the first segment."""
        return self.known.windows or 0

    @property
    def n_windows(self) -> int:
        """The number of windows up to the end of the last segment."""
        return self.training + self.n_segments * self.horizon


def resolve_game(game: ReconstructionGame, accountants: Sequence[Accountant], n_windows: int, n_cells: int) -> Settings:
    """Resolve a game's parameters for a run of the given size, using its accountants. No data is read."""
    if n_windows < 3:
        raise ParameterError("windows", n_windows, "3 or more in a run: two to learn from, one to attack")
    accountant = next((each for each in accountants if isinstance(each, Reconstruction)), None)
    horizon = game.horizon or (accountant.horizon if accountant else min(10, max(n_windows // 2, 1)))
    if horizon > n_windows - 2:
        expected = f"at most {n_windows - 2}: two of {n_windows} windows are learned from"
        raise ParameterError("horizon", horizon, expected)
    asked = max((each.training_windows or 0 for each in accountants), default=0)
    training = game.training or (asked if 2 <= asked <= n_windows - horizon else min(168, n_windows // 2))
    if training < 2 or training + horizon > n_windows:
        expected_size = f"2 to {n_windows - horizon}, so that {horizon} of the {n_windows} windows are left to attack"
        raise ParameterError("training", training, expected_size)
    usual = accountant.tolerance if accountant else min(2, horizon - 1)
    given = usual if game.tolerance is None else game.tolerance
    if given >= horizon:
        raise ParameterError("tolerance", given, f"below the horizon of {horizon} windows, or every guess succeeds")
    if game.learned:
        try:
            Learned.read(game.learned)
        except DataError as error:
            expected = f"a file that `penstock learn` wrote ({error})"
            raise ParameterError("learned", game.learned, expected) from error
        known = KnownPrior(learned=game.learned, windows=training)
    elif accountant:
        known = replace(accountant.prior, windows=training)
    else:
        known = KnownPrior(estimate="first", windows=training, top=PLACES if n_cells > PLACES else None)
    n_segments = min(game.stretches, (n_windows - training) // horizon)
    tunes = accountant is None and not game.learned
    share = game.known if game.known is not None else (accountant.known if accountant else 1.0)
    settings = Settings(horizon=horizon, tolerance=given, n_segments=n_segments, known=known, tunes=tunes, share=share)
    n_values = game.releases * settings.n_windows * n_cells
    if n_values > MAX_VALUES:
        maximum = max(1, game.releases * MAX_VALUES // n_values)
        raise ParameterError("releases", game.releases, f"at most {maximum} with this number of windows and cells")
    return settings


def deterministic_output(chain: Chain) -> Shown | None:
    """Return the elementwise function that a mechanism without noise applies, or None if there is no such function."""
    reader, steps = chain.reader, chain.after
    if isinstance(reader, CrowdBlending) and reader.epsilon is None:
        steps = (SuppressSmall(threshold=reader.threshold), *steps)
    elif not isinstance(reader, Raw):
        return None
    if not steps or any(step.reads_noise for step in steps):
        return None
    return lambda counts: reduce(lambda values, step: step.transform(values), steps, np.asarray(counts, np.float64))


def check_likelihood(chain: Chain, steps: Sequence[ChainStep]) -> None:
    """Raise an error if the mechanism's releases have no known likelihood given everybody else's counts."""
    adds_noise = Releasing(chain.reader, tuple(steps)).adds_noise_only
    if len(steps) == 1 and not chain.reshapes and (adds_noise or deterministic_output(chain) is not None):
        return
    expected = (
        "a single step that adds noise of a known scale in each window, or changes each count by itself: how likely a "
        "release of any other is, is not known; the accountant `reconstruction` bounds what it tells"
    )
    raise ParameterError("mechanism", [MECHANISMS.name_of(type(step)) for step in steps], expected)


class ReconstructionAttack:
    """The reconstruction game on a run: one game per target, over repeated releases of the same windows.

    The adversary knows everybody else's counted cells, or those of a share of people (`UnknownCrowd`), a Markov prior
    of the target, and all releases from the run's first window to the end of a segment. The bound holds for any
    adversary with this knowledge (`SuccessBounds`). The first release is that of the run itself.
    """

    def __init__(self, run: AttackedRun, game: ReconstructionGame, settings: Settings) -> None:
        self.run, self.game, self.settings = run, game, settings
        n_cells = run.facts.n_cells
        # Shape (n_users, n_windows): the cell of each person in each window, or n_cells if the person is in no cell.
        cells, is_seen = run.released.argmax(axis=2), run.released.any(axis=2)
        self.trajectories = np.asarray(np.where(is_seen, cells, n_cells))
        targets, self.mobility = _targets(run, self.trajectories, settings, game)
        self.targets: list[int] = targets.tolist()
        self.known = known = _known_priors(self.trajectories, targets, run, settings)
        counts = np.stack([np.bincount(column, minlength=n_cells + 1)[:-1] for column in self.trajectories.T])
        replicas = np.ascontiguousarray(np.broadcast_to(counts, (game.releases, *counts.shape)))
        facts, windows = replace(run.facts, n_replicas=game.releases), run.windows(1, settings.n_windows)
        # The first replica is the run's own release.
        steps = step_through(run.mechanism, replicas, facts, windows, run.noise)
        shown = deterministic_output(run.chain)
        self.observed = observe([release for made, _ in steps for release in made], counts, shown)
        # The same windows without any noise, of the sensors that publish.
        everywhere = np.ones(n_cells, bool)
        active = np.stack([everywhere if window.active is None else window.active for window in windows])
        self.exact = Observed(counts, np.where(active, 0.0, np.nan)[None], np.zeros((1, *counts.shape)))
        self.in_hours = all(window.end - window.start == HOUR for window in windows)
        self.bounds = SuccessBounds(
            known.places,
            self.observed,
            planned_segments(run, known.places, settings) if shown is None else (),
            training=settings.training,
            horizon=settings.horizon,
            tolerance=settings.tolerance,
            simulated=game.simulated,
            n_samples=game.bound_samples,
            adaptive=run.chain.reader.guarantee.adaptive,
            seed=run.seed,
        )

    def play(self, target: int) -> list[dict[str, Any]]:
        """Return the table rows for one target. They do not depend on any other target."""
        settings, known = self.settings, self.known
        number, path = self.targets.index(target), self.trajectories[target : target + 1]
        prior, periods = known.priors[min(number, len(known.priors) - 1)], (settings.horizon, settings.training)
        crowd = _unknown_people(known, self.run, self.trajectories, number)
        guesses: dict[str, NDArray[np.intp]] = {}
        for suffix, kinds, observed in (("", KINDS, self.observed), (EXACT, READERS, self.exact)):
            made = decode_trajectories(kinds, prior, observed, path, known.places, *periods, crowd)
            guesses |= {f"{kind}{suffix}": guess for kind, guess in made.items()}
        guessed = path[:, settings.training :]
        hits = {kind: count_correct(guess, guessed, known.places)[0] for kind, guess in guesses.items()}
        user = " ".join(map(str, self.run.users[target]))
        identity = {"target": target, "user": user, "mobility": MOBILITY_GROUPS[self.mobility[number]]}
        return _rows(identity, hits, *self.bounds.of(prior, path[0], number), known.assumption, settings)

    def seconds(self) -> float:
        """Estimate how long attacking one target takes by timing a segment's bounds, which dominate the cost."""
        begin = time.monotonic()
        for number, target in enumerate(self.targets[:2]):  # the first one also works out what all share
            begin, prior = time.monotonic(), self.known.priors[min(number, len(self.known.priors) - 1)]
            self.bounds.of(prior, self.trajectories[target], number, n=1)
        return (time.monotonic() - begin) * self.settings.n_segments

    def summary(self, table: pl.DataFrame) -> dict[str, Any]:
        """Return the results by mobility group, along with the game's parameters."""
        settings = self.settings
        played = {**asdict(self.game), "horizon": settings.horizon, "tolerance": settings.tolerance}
        played |= {"stretches": settings.n_segments, "training": settings.training, "known": settings.share}
        played |= {"guessed": "hours" if self.in_hours else "windows"}
        played |= {"n_people": len(self.run.users), "prior": self.known.assumption, "n_attacked": len(self.targets)}
        return {"game": played} | summarize_reconstruction(table)


def planned_segments(run: AttackedRun, places: PriorPlaces, settings: Settings) -> tuple[PlannedWindows, ...]:
    """Return the sensors and noise of each segment, as known before its first window."""
    releasing = Releasing(run.chain.reader, run.steps)
    forecast = ReleaseForecast(places, settings.horizon, releasing, run.facts, run.windows)
    horizons = forecast.horizons(settings.n_windows)
    return tuple(islice(horizons, settings.training, None, settings.horizon))


def _targets(
    run: AttackedRun, trajectories: NDArray[np.intp], settings: Settings, game: ReconstructionGame
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Choose targets seen in enough training windows, equally many per mobility group. Return indices and groups."""
    seen = (trajectories[:, : settings.training] < run.facts.n_cells).sum(axis=1)
    people = np.flatnonzero(seen >= settings.known.min_windows)
    if len(people) < len(MOBILITY_GROUPS):
        seen_in = f"{settings.known.min_windows} or more of the {settings.training} training windows"
        raise DataError(f"{len(people)} people are seen in {seen_in}; an attack needs at least {len(MOBILITY_GROUPS)}")
    raw = run.raw[people]
    chosen = draw_targets(raw, min(game.targets, len(people)), run.seed)
    return people[chosen], mobility_groups(raw)[chosen]


def _known_priors(
    trajectories: NDArray[np.intp], targets: NDArray[np.intp], run: AttackedRun, settings: Settings
) -> KnownTargets:
    """Return the targets together with their priors."""
    n_cells, named = run.facts.n_cells, tuple(targets.tolist())
    paths = np.where(trajectories == n_cells, -1, trajectories)[:, : settings.training]
    training = Training(trajectories=paths, users=run.users, n_cells=n_cells, named=named)
    prior = tuned(settings.known, training) if settings.tunes else settings.known
    known = known_targets(prior, named, run.seed, training)
    if known.places.n_cells != n_cells:
        raise ParameterError("learned", f"{known.places.n_cells} cells", f"a prior over the {n_cells} cells of the run")
    return with_known_people(known, prior, settings.share, run.seed, training)


def _unknown_people(
    known: KnownTargets, run: AttackedRun, trajectories: NDArray[np.intp], number: int
) -> UnknownPeople | None:
    """Return the people in each window who are unknown to a target's adversary, or None if she knows everybody."""
    if known.crowd is None:
        return None
    row = {tuple(user): place for place, user in enumerate(run.users.tolist())}
    unknown, target = ([row[tuple(user)] for user in users.tolist()] for users in (known.unknown, known.users))
    crowd, n_cells = known.crowd.part(number, number + 1), known.places.n_cells
    windows = zip(trajectories[target[number : number + 1]].T, trajectories[unknown].T)
    people = [crowd.not_known(cells, others, n_cells)[0] for cells, others in windows]
    return UnknownPeople(np.stack(people), crowd.log_mass[0])


def tuned(known: KnownPrior, training: Training) -> KnownPrior:
    """Choose a prior's smoothing by log-likelihood on the last quarter of at least three training windows.

    A prior that excludes too much makes a weak adversary where people go to new places: with exact likelihoods she
    explains them by noise. O(8·n_targets·n_places²).
    """
    n_learned = int(LEARNED_SHARE * training.n_windows)
    if n_learned < 2 or n_learned == training.n_windows:
        return known
    seen = training.with_unseen()[list(training.named)]

    def log_likelihood(smoothing: tuple[str, float]) -> float:
        """Return the log-probability of the next place for each target, averaged over the held-out windows."""
        towards, weight = smoothing
        prior = replace(known, towards=towards, smoothing=weight, windows=n_learned, initial="empirical")
        targets = known_targets(prior, training.named, 0, training)
        held = targets.places.location[seen][:, n_learned - 1 :]
        likelihood = [np.asarray(one.transition)[path[:-1], path[1:]] for one, path in zip(targets.priors, held)]
        with np.errstate(divide="ignore"):
            return float(np.log(np.stack(likelihood)).mean())

    towards, smoothing = max(product(TOWARDS, SMOOTHING), key=log_likelihood)
    return replace(known, towards=towards, smoothing=smoothing)


def _rows(
    identity: Mapping[str, Any],
    n_right: Mapping[str, NDArray[np.intp]],
    bound: float,
    simulated: Mapping[str, tuple[int, int]],
    assumption: str,
    settings: Settings,
) -> list[dict[str, Any]]:
    """Return the table rows for one target. ``identity`` holds the columns ``target``, ``user`` and ``mobility``.

    ``n_right``: by estimator, windows of each segment guessed right, shape (n_releases, n_segments); ``simulated``: by
    estimator, successes and trials on trajectories simulated from the prior; ``bound``: on the success of any reader.
    ``<estimator>_success`` and ``<estimator>_hits`` (share of the windows guessed right) on its true trajectory,
    ``<estimator>_exact_success`` and ``<estimator>_exact_hits`` the same from exact counts,
    ``<estimator>_success_made_up`` on trajectories simulated from its prior, by an adversary who knows the place just
    before, and ``success_upper_bound``. Intervals (95 %, Clopper and Pearson) take segments and simulated trajectories
    as independent trials; releases of the same segment are not.
    """
    known = "everybody" if settings.share == 1 else f"{settings.share:.0%} of everybody"
    text = (
        f"{settings.horizon} windows, given their releases and all before, at most {settings.tolerance} of the windows"
    )
    text += f" wrong; {known} else's cells known, {assumption}"
    subject = f"target {identity['target']}"
    fixed: dict[str, Any] = {"accountant": ACCOUNTANT, "subject": subject, "window": None}
    fixed |= {"adjacency": text, "status": "final", "stretches": settings.n_segments, **identity}

    def row(name: str, value: float, trials: int, limits: tuple[float, float] | None = None) -> dict[str, Any]:
        low, high = limits or (None, None)
        unit = "share" if name.endswith("_hits") else "probability"
        return fixed | {"name": name, "value": value, "low": low, "high": high, "unit": unit, "trials": trials}

    rows = []
    for kind, right in n_right.items():
        rate, trials = float((right >= settings.horizon - settings.tolerance).mean()), right.shape[1]
        rows.append(row(f"{kind}_success", rate, right.size, binomial_limits(rate, trials)))
        rows.append(row(f"{kind}_hits", float(right.mean()) / settings.horizon, right.size))
    for kind, (successes, n) in simulated.items():
        rate = successes / n
        rows.append(row(f"{kind}_success_made_up", rate, n, binomial_limits(rate, n)))
    return [*rows, row(BOUND, bound, 0)]
