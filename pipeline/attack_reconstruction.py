"""``penstock attack``: retrace people's ways from a configured release, before anybody else does."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from accountants.core.training import Training
from accountants.correlation.learned import Learned
from accountants.inference.known import KnownTargets, known_targets
from evaluation.attacks.retracing import Observed, observe, retrace, right
from evaluation.attacks.targets import MOBILITY_GROUPS, draw_targets, mobility_groups
from mechanisms.core.errors import DataError, ParameterError
from mechanisms.core.run import step_through
from pipeline import parts
from pipeline.attack import Listener, Outcome, counts_plan
from pipeline.attack_followed import refuse_unless_followed, shown_by
from pipeline.attack_prospects import Prospects
from pipeline.attack_reconstruction_game import ReconstructionGame, Settings, settle
from pipeline.attack_reconstruction_summary import KINDS, SCHEMA, rows_of, summarize_reconstruction
from pipeline.attack_store import Store, game_name, in_threads
from pipeline.attack_tuning import tuned
from pipeline.configuration.canonical import content_digest
from pipeline.configuration.run import RunConfig, resolved
from pipeline.manifest import versions
from pipeline.plan import Plan
from pipeline.presence import Presence, read_presence

TABLE, SUMMARY = "attack_reconstruction.parquet", "attack_reconstruction.json"
#: Values of all releases together, of which a few copies of 8 bytes are held: 1 GB.
MAX_VALUES = 40_000_000


def prepare_reconstruction(config: RunConfig, game: ReconstructionGame) -> tuple[Plan, Settings]:
    """Everything that is decided before people are looked at.

    Raises
    ------
    ParameterError
        The attack cannot be made on this configuration; the message says why.
    """
    plan = counts_plan(config)
    refuse_unless_followed(plan)
    if plan.calendar.n_windows is None:
        raise DataError("an endless stream cannot be attacked as a whole; give the source an end (until)")
    settings = settle(game, config, plan.calendar.n_windows, plan.n_cells)
    if settings.known.learned:
        try:
            Learned.read(settings.known.learned)
        except DataError as error:
            right = f"a file that `penstock learn` wrote ({error})"
            raise ParameterError("learned", settings.known.learned, right) from error
    n_values = game.releases * settings.n_windows * plan.n_cells
    if n_values > MAX_VALUES:
        most = max(1, game.releases * MAX_VALUES // n_values)
        raise ParameterError("releases", game.releases, f"at most {most} over so many windows and cells")
    return plan, settings


def reconstruct(
    config: RunConfig,
    game: ReconstructionGame | None = None,
    *,
    folder: str | Path | None = None,
    n_jobs: int = 1,
    listener: Listener = lambda done, total: None,
) -> Outcome:
    """Retrace people's ways from releases of the configured mechanism, and bound what they tell anybody.

    Parameters
    ----------
    config
        Of a simulation of counts over a finite source, one cell a person and window. Its seed decides targets and
        noise; the first release is that of the run itself.
    game
        How it is played; None: as it is by default.
    folder
        Where to write; None: ``output.path``.
    n_jobs
        Targets attacked at a time, in threads; memory grows with it.
    listener
        Called with the number of people attacked and of all.

    Returns
    -------
    outcome
        One row for each target and figure, in the columns of ``operator/accounts.parquet``; the same whatever `n_jobs`,
        and whether it was interrupted: targets on disk from the same game are kept.

    Raises
    ------
    ParameterError, UnsupportedEvent
        The configuration's release cannot be followed window by window; the message says why.

    Notes
    -----
    The adversary knows everybody else's counted cells, a Markov prior of the target, and all releases from the run's
    first window to the end of a stretch. The bound is on whoever knows that much (`Prospects`). Memory as for
    `read_presence` and `retrace`; O(n_targets n_windows n_releases n_places²) time, and that of `success_upper_bound`
    for each target and schedule, where a prior does not start in its long-run distribution for each stretch too.
    """
    game = game or ReconstructionGame()
    plan, settings = prepare_reconstruction(config, game)
    presence = read_presence(plan, settings.n_windows)
    ways = _ways(presence)
    targets, mobility = _targets(presence, ways, settings, game, config.seed or 0)
    known = _known(ways, targets, presence, settings, config.seed or 0)
    observed = _observed(plan, ways, settings, game.releases)
    prospects = Prospects(plan, known.places, settings, game, observed)
    folder = Path(folder or config.output.path)
    store = Store(folder / "operator" / TABLE, SCHEMA, _name(config, game, settings, presence), ("target",))
    rows = store.kept()
    done = {row["target"] for row in rows}
    waiting = [number for number, target in enumerate(targets) if target not in done]
    listener(len(done), len(targets))
    attack = partial(_attack, known, observed, ways[targets], settings, prospects)
    for n_made, (number, found) in enumerate(in_threads(attack, waiting, n_jobs), len(done) + 1):
        user = " ".join(str(word) for word in presence.users[targets[number]])
        own = {"target": int(targets[number]), "user": user, "mobility": MOBILITY_GROUPS[mobility[number]]}
        rows += rows_of(own, found, known.assumption, settings)
        store.write(rows)
        listener(n_made, len(targets))
    table = store.write(rows)
    played = {**asdict(game), "horizon": settings.horizon, "tolerance": settings.tolerance}
    played |= {"stretches": settings.n_stretches, "training": settings.training, "n_people": len(presence.users)}
    summary = {
        "game": played | {"prior": known.assumption, "n_attacked": len(targets)},
        "mechanism": resolved(config)["mechanism"],
        "versions": versions(),
        **summarize_reconstruction(table),
    }
    parts.write_json(folder / "operator" / SUMMARY, summary)
    files = tuple(folder / "operator" / name for name in (SUMMARY, TABLE))
    return Outcome(folder, table, summary, len(done), files)


def _name(config: RunConfig, game: ReconstructionGame, settings: Settings, presence: Presence) -> str:
    """Of the game, with what it takes from accountants and from files."""
    learned = content_digest(settings.known.learned) if settings.known.learned else None
    return game_name(config, [asdict(game), asdict(settings), learned], presence)


def _ways(presence: Presence) -> NDArray[np.intp]:
    """Cell in which each person counts in each window, n_cells where in none; (n_users, n_windows)."""
    n_cells = presence.released.shape[1]
    return np.asarray(np.where(presence.released.any(axis=1), presence.released.argmax(axis=1), n_cells))


def _targets(
    presence: Presence, ways: NDArray[np.intp], settings: Settings, game: ReconstructionGame, seed: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """People seen in enough training windows, equally many of each mobility group, and their groups."""
    seen = (ways[:, : settings.training] < presence.released.shape[1]).sum(axis=1)
    people = np.flatnonzero(seen >= settings.known.min_windows)
    if len(people) < len(MOBILITY_GROUPS):
        raise DataError(
            f"{len(people)} people are seen in {settings.known.min_windows} or more of the {settings.training} "
            f"training windows; an attack needs at least {len(MOBILITY_GROUPS)}"
        )
    raw = presence.raw[people]
    chosen = draw_targets(raw, min(game.targets, len(people)), seed)
    return people[chosen], mobility_groups(raw)[chosen]


def _known(
    ways: NDArray[np.intp], targets: NDArray[np.intp], presence: Presence, settings: Settings, seed: int
) -> KnownTargets:
    """Priors of the targets."""
    n_cells = presence.released.shape[1]
    training = Training(
        trajectories=np.where(ways == n_cells, -1, ways)[:, : settings.training],
        users=presence.users,
        n_cells=n_cells,
        named=tuple(targets.tolist()),
    )
    prior = tuned(settings.known, training) if settings.tunes else settings.known
    known = known_targets(prior, tuple(targets.tolist()), seed, training)
    if known.places.n_cells != n_cells:
        raise ParameterError("learned", f"{known.places.n_cells} cells", f"a prior over the {n_cells} cells of the run")
    return known


def _observed(plan: Plan, ways: NDArray[np.intp], settings: Settings, n_releases: int) -> Observed:
    """Releases of all windows up to the last stretch's; the first is the one that the run itself would make."""
    counts = np.stack([np.bincount(column, minlength=plan.n_cells + 1)[:-1] for column in ways.T])
    replicas = np.ascontiguousarray(np.broadcast_to(counts, (n_releases, *counts.shape)))
    facts = replace(plan.facts(), n_replicas=n_releases)
    windows = plan.windows(1, settings.n_windows)
    steps = step_through(plan.mechanism, replicas, facts, windows, plan.noise())
    releases = [release for made, _ in steps for release in made]
    return observe(releases, counts, shown_by(plan))


@dataclass(frozen=True)
class Found:
    """What was found out about one target.

    Parameters
    ----------
    n_right
        By estimator, windows of each stretch guessed right, (n_releases, n_stretches).
    bound
        On the success of anybody who reads the releases, people moving as the prior says; mean over stretches.
    simulated
        By estimator, successes against made-up ways of the prior, and how many there were.
    """

    n_right: dict[str, NDArray[np.intp]]
    bound: float
    simulated: dict[str, tuple[int, int]]


def _attack(
    known: KnownTargets,
    observed: Observed,
    ways: NDArray[np.intp],
    settings: Settings,
    prospects: Prospects,
    number: int,
) -> tuple[int, Found]:
    """The attack on one target, by its number: alone, so that nothing depends on who is attacked beside it."""
    way, prior = ways[number : number + 1], known.priors[min(number, len(known.priors) - 1)]
    guesses = retrace(KINDS, prior, observed, way, known.places, settings.horizon, settings.training)
    guessed = way[:, settings.training :]
    hits = {str(kind): right(guess, guessed, known.places)[0] for kind, guess in guesses.items()}
    return number, Found(hits, *prospects.of(prior, way[0], number))
