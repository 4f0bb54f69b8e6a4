"""Reconstruction of trajectories from a configured release: the game, its conditions, the attack and its summary."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import reduce
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.accountants.core.training import Training
from penstock.accountants.correlation.adversary import Learned
from penstock.accountants.inference.places import PlannedWindows, PriorPlaces, ReleaseForecast, Releasing
from penstock.accountants.inference.targets import KnownPrior, KnownTargets, knowing_a_share, known_targets
from penstock.accountants.reconstruction import Reconstruction
from penstock.evaluation.attacks.parameters import ReconstructionGame
from penstock.evaluation.attacks.retracing import (
    NotKnown,
    Shown,
    count_correct,
    decode_trajectories,
    observe,
)
from penstock.evaluation.attacks.segment_bounds import SuccessBounds
from penstock.evaluation.attacks.summaries import BOUND, KINDS, binomial_limits, summarize_reconstruction
from penstock.evaluation.attacks.targets import MOBILITY_GROUPS, draw_targets, mobility_groups
from penstock.mechanisms.core.contract import MECHANISMS
from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.mechanisms.core.run import step_through
from penstock.mechanisms.crowd_blending import CrowdBlending
from penstock.mechanisms.raw import Raw
from penstock.mechanisms.suppress_small import SuppressSmall
from penstock.pipeline.config.canonical import content_digest
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.counting.presence import Presence, read_presence
from penstock.pipeline.counting.spec import STREAM
from penstock.pipeline.experiments.games import membership
from penstock.pipeline.experiments.games.membership import SILENT, AttackListener, AttackOutcome
from penstock.pipeline.experiments.pieces import Record, RecordFolder
from penstock.pipeline.output.tables import ACCOUNTS

ACCOUNTANT = "attack_reconstruction"

#: Columns of ``operator/accounts.parquet``, then the target, the trials behind a value, and the game.
SCHEMA: dict[str, Any] = {
    **pl.DataFrame(ACCOUNTS.empty_table()).schema,
    **dict.fromkeys(("target", "trials", "stretches"), pl.Int64),
    **dict.fromkeys(("user", "mobility", "game"), pl.String),
}

TABLE, SUMMARY = "attack_reconstruction.parquet", "attack_reconstruction.json"
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
    """The resolved parameters of a game."""

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


def settle(game: ReconstructionGame, config: RunConfig, n_windows: int, n_cells: int) -> Settings:
    """Resolve the parameters of a game for a run of the given size."""
    if n_windows < 3:
        raise ParameterError("windows", n_windows, "3 or more in a run: two to learn from, one to attack")
    accountant = next((each for each in config.accountants if isinstance(each, Reconstruction)), None)
    horizon = game.horizon or (accountant.horizon if accountant else min(10, max(n_windows // 2, 1)))
    if horizon > n_windows - 2:
        expected = f"at most {n_windows - 2}: two of {n_windows} windows are learned from"
        raise ParameterError("horizon", horizon, expected)
    asked = max((each.training_windows or 0 for each in config.accountants), default=0)
    training = game.training or (asked if 2 <= asked <= n_windows - horizon else min(168, n_windows // 2))
    if training < 2 or training + horizon > n_windows:
        expected_size = f"2 to {n_windows - horizon}, so that {horizon} of the {n_windows} windows are left to attack"
        raise ParameterError("training", training, expected_size)
    usual = accountant.tolerance if accountant else min(2, horizon - 1)
    given = usual if game.tolerance is None else game.tolerance
    if given >= horizon:
        raise ParameterError("tolerance", given, f"below the horizon of {horizon} windows, or every guess succeeds")
    if game.learned:
        known = KnownPrior(learned=game.learned, windows=training)
    elif accountant:
        known = replace(accountant.prior, windows=training)
    else:
        known = KnownPrior(estimate="first", windows=training, top=PLACES if n_cells > PLACES else None)
    n_segments = min(game.stretches, (n_windows - training) // horizon)
    tunes = accountant is None and not game.learned
    share = game.known if game.known is not None else (accountant.known if accountant else 1.0)
    return Settings(horizon=horizon, tolerance=given, n_segments=n_segments, known=known, tunes=tunes, share=share)


def deterministic_output(plan: Plan) -> Shown | None:
    """Return the elementwise function of a noise-free mechanism, or None for any other mechanism."""
    reader, steps = plan.chain.reader, plan.chain.after
    if isinstance(reader, CrowdBlending) and reader.epsilon is None:
        steps = (SuppressSmall(threshold=reader.threshold), *steps)
    elif not isinstance(reader, Raw):
        return None
    if not steps or any(step.reads_noise for step in steps):
        return None
    return lambda counts: reduce(lambda values, step: step.transform(values), steps, np.asarray(counts, np.float64))


def check_applicable(plan: Plan) -> None:
    """Reject a run whose release, after subtracting everybody else's counts, has no known likelihood in each window."""
    source = plan.config.source
    if not source.has_people:
        expected = "one that tells people apart: here every trip is a new person, without a trajectory to retrace"
        raise ParameterError("source", type(source).__name__.lower(), expected)
    if plan.bounds.max_cells != 1:
        reason = "with several cells of a window there is no single trajectory to retrace"
        expected = f"1 for a reconstruction attack: {reason}"
        raise ParameterError("bounding.max_cells", plan.config.bounding.max_cells, expected)
    steps = plan.config.mechanism
    adds_noise = Releasing(plan.chain.reader, steps).adds_noise_only
    alone = len(steps) == 1 and not plan.chain.reshapes
    if alone and (adds_noise or deterministic_output(plan) is not None):
        return
    expected = (
        "a single step that adds noise of a known scale in each window, or changes each count by itself: how likely a "
        "release of any other is, is not known; the accountant `reconstruction` bounds what it tells"
    )
    raise ParameterError("mechanism", [MECHANISMS.name_of(type(step)) for step in steps], expected)


def prepare_reconstruction(config: RunConfig, game: ReconstructionGame) -> tuple[Plan, Settings]:
    """Check that the attack applies and resolve its parameters, before any data are read."""
    plan = membership.counts_plan(config)
    check_applicable(plan)
    if plan.grid.calendar.n_windows is None:
        raise DataError("an endless stream cannot be attacked as a whole; give the source an end (until)")
    settings = settle(game, config, plan.grid.calendar.n_windows, plan.grid.n_cells)
    if settings.known.learned:
        try:
            Learned.read(settings.known.learned)
        except DataError as error:
            expected = f"a file that `penstock learn` wrote ({error})"
            raise ParameterError("learned", settings.known.learned, expected) from error
    n_values = game.releases * settings.n_windows * plan.grid.n_cells
    if n_values > MAX_VALUES:
        maximum = max(1, game.releases * MAX_VALUES // n_values)
        raise ParameterError("releases", game.releases, f"at most {maximum} with this number of windows and cells")
    return plan, settings


def reconstruct(
    config: RunConfig,
    game: ReconstructionGame | None = None,
    *,
    folder: str | Path | None = None,
    n_jobs: int | None = None,
    listener: AttackListener = SILENT,
) -> AttackOutcome:
    """Reconstruct trajectories from the releases of the configured mechanism, and bound the success of any attack.

    ``config``: simulation of counts over a finite source, one cell a person and window. Its seed decides targets and
    noise; the first release is that of the run itself. ``folder``: where to write; None: ``output.path``. ``n_jobs``:
    targets attacked at a time, in threads; memory grows with it. None: one a processor.

    Returns one row for each target and figure, in the columns of ``operator/accounts.parquet``; the same whatever
    `n_jobs`, and whether it was interrupted: targets on disk from the same game are kept. Raises `ParameterError` or
    `UnsupportedEvent` if the attack does not apply to the configured release.

    The adversary knows everybody else's counted cells, or those of a share of people (`UnknownCrowd`), a Markov prior
    of the target, and all releases from the run's first window to the end of a segment. The bound holds for any
    adversary with this knowledge (`SuccessBounds`).
    Memory as for `read_presence` and `decode_trajectories`; O(n_targets n_windows n_releases n_places²) time, and that
    of `success_upper_bound` for each target and schedule, and for each segment unless the prior is stationary.
    """
    game = game or ReconstructionGame()
    plan, settings = prepare_reconstruction(config, game)
    presence = read_presence(plan, settings.n_windows)
    # Shape (n_users, n_windows): the cell of each person in each window, or n_cells if the person is in no cell.
    cells, is_seen = presence.released.argmax(axis=2), presence.released.any(axis=2)
    trajectories = np.asarray(np.where(is_seen, cells, plan.grid.n_cells))
    targets, mobility = _targets(presence, trajectories, settings, game, config.seed or 0)
    listener.begun(len(targets), len(presence.users))
    known = _known_priors(trajectories, targets, presence, settings, config.seed or 0)
    counts = np.stack([np.bincount(column, minlength=plan.grid.n_cells + 1)[:-1] for column in trajectories.T])
    replicas = np.ascontiguousarray(np.broadcast_to(counts, (game.releases, *counts.shape)))
    facts, windows = replace(plan.facts(), n_replicas=game.releases), plan.grid.windows(1, settings.n_windows)
    # The first replica is the run's own release.
    steps = step_through(plan.mechanism, replicas, facts, windows, plan.keys.noise())
    observed = observe([release for made, _ in steps for release in made], counts, deterministic_output(plan))
    bounds = SuccessBounds(
        known.places,
        observed,
        planned_segments(plan, known.places, settings) if observed.shown is None else (),
        training=settings.training,
        horizon=settings.horizon,
        tolerance=settings.tolerance,
        simulated=game.simulated,
        n_samples=game.bound_samples,
        adaptive=plan.chain.reader.guarantee.adaptive,
        seed=config.seed or 0,
    )
    folder = Path(folder or config.output.path)
    learned = content_digest(settings.known.learned) if settings.known.learned else None
    name = membership.game_name(config, [asdict(game), asdict(settings), learned], presence)
    kept, numbers = RecordFolder(folder / "operator" / "attack"), {int(one): i for i, one in enumerate(targets)}

    def play(target: int) -> list[Record]:
        """Return the rows of one target, which depend on no other target."""
        number, path = numbers[target], trajectories[target : target + 1]
        prior, periods = known.priors[min(number, len(known.priors) - 1)], (settings.horizon, settings.training)
        crowd = _unknown_people(known, presence, trajectories, number)
        guesses = decode_trajectories(KINDS, prior, observed, path, known.places, *periods, crowd)
        guessed = path[:, settings.training :]
        hits = {str(kind): count_correct(guess, guessed, known.places)[0] for kind, guess in guesses.items()}
        user = " ".join(map(str, presence.users[target]))
        identity = {"target": target, "user": user, "mobility": MOBILITY_GROUPS[mobility[number]]}
        return _rows(identity, hits, *bounds.of(prior, path[0], number), known.assumption, settings)

    rows, n_resumed = membership.play_all(kept, name, list(numbers), play, n_jobs or os.cpu_count() or 1, listener)
    table = pl.DataFrame([{"game": name} | row for row in rows], SCHEMA).sort("target", maintain_order=True)
    played = {**asdict(game), "horizon": settings.horizon, "tolerance": settings.tolerance}
    played |= {"stretches": settings.n_segments, "training": settings.training, "known": settings.share}
    played |= {"n_people": len(presence.users), "prior": known.assumption, "n_attacked": len(targets)}
    summary = {"game": played} | summarize_reconstruction(table)
    return membership.finish_attack(config, folder, table, summary, n_resumed, (SUMMARY, TABLE))


def planned_segments(plan: Plan, places: PriorPlaces, settings: Settings) -> tuple[PlannedWindows, ...]:
    """Return the sensors and noise of each segment, as known before its first window."""
    releasing = Releasing(plan.chain.reader, plan.config.mechanism)
    forecast = ReleaseForecast(places, settings.horizon, releasing, plan.facts(), plan.grid.windows)
    horizons = forecast.horizons(settings.n_windows)
    return tuple(islice(horizons, settings.training, None, settings.horizon))


def _targets(
    presence: Presence, trajectories: NDArray[np.intp], settings: Settings, game: ReconstructionGame, seed: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Choose targets seen in enough training windows, equally many from each mobility group, and return both."""
    seen = (trajectories[:, : settings.training] < presence.released.shape[2]).sum(axis=1)
    people = np.flatnonzero(seen >= settings.known.min_windows)
    if len(people) < len(MOBILITY_GROUPS):
        seen_in = f"{settings.known.min_windows} or more of the {settings.training} training windows"
        raise DataError(f"{len(people)} people are seen in {seen_in}; an attack needs at least {len(MOBILITY_GROUPS)}")
    raw = presence.raw[people]
    chosen = draw_targets(raw, min(game.targets, len(people)), seed)
    return people[chosen], mobility_groups(raw)[chosen]


def _known_priors(
    trajectories: NDArray[np.intp], targets: NDArray[np.intp], presence: Presence, settings: Settings, seed: int
) -> KnownTargets:
    """Return the targets with their priors."""
    n_cells, named = presence.released.shape[2], tuple(targets.tolist())
    paths = np.where(trajectories == n_cells, -1, trajectories)[:, : settings.training]
    training = Training(trajectories=paths, users=presence.users, n_cells=n_cells, named=named)
    prior = tuned(settings.known, training) if settings.tunes else settings.known
    known = known_targets(prior, named, seed, training)
    if known.places.n_cells != n_cells:
        raise ParameterError("learned", f"{known.places.n_cells} cells", f"a prior over the {n_cells} cells of the run")
    return knowing_a_share(known, prior, settings.share, seed, training)


def _unknown_people(
    known: KnownTargets, presence: Presence, trajectories: NDArray[np.intp], number: int
) -> NotKnown | None:
    """Return, for each window, the people whom a target's adversary does not know, or None if she knows everybody."""
    if known.crowd is None:
        return None
    row = {tuple(user): place for place, user in enumerate(presence.users.tolist())}
    unknown, target = ([row[tuple(user)] for user in users.tolist()] for users in (known.unknown, known.users))
    crowd, n_cells = known.crowd.part(number, number + 1), known.places.n_cells
    windows = zip(trajectories[target[number : number + 1]].T, trajectories[unknown].T)
    people = [crowd.not_known(cells, others, n_cells)[0] for cells, others in windows]
    return NotKnown(np.stack(people), crowd.log_mass[0])


def tuned(known: KnownPrior, training: Training) -> KnownPrior:
    """Choose the smoothing of a prior by the log-likelihood of the last quarter of the training windows, if there are
    three windows.

    A prior that excludes too much makes a weak adversary where people go to new places: with exact likelihoods she
    explains them by noise. O(8·n_targets·n_places²).
    """
    n_learned = int(LEARNED_SHARE * training.n_windows)
    if n_learned < 2 or n_learned == training.n_windows:
        return known
    seen = training.with_unseen()[list(training.named)]

    def log_likelihood(smoothing: tuple[str, float]) -> float:
        """Return the mean log-probability of each target's next place over the held-out windows."""
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
    """Return the rows of one target, ``identity`` being its columns ``target``, ``user`` and ``mobility``.

    ``n_right``: by estimator, windows of each segment guessed right, shape (n_releases, n_segments); ``simulated``: by
    estimator, successes and trials on trajectories simulated from the prior; ``bound``: on the success of any reader.
    ``<estimator>_success`` and ``<estimator>_hits`` (share of the windows guessed right) on its true trajectory,
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
    fixed: dict[str, Any] = {"stream": STREAM, "accountant": ACCOUNTANT, "subject": subject, "window": None}
    fixed |= {"adjacency": text, "status": "final", "stretches": settings.n_segments, **identity}

    def row(name: str, value: float, trials: int, limits: tuple[float, float] | None = None) -> dict[str, Any]:
        """Return the row of a figure, with its limits, unit and number of trials."""
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
