"""Privacy gain and utility cost of each defense: figures 6(b) and 7 to 10."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.accountants.online_attack import area_under_curve
from penstock.evaluation.attacks.challenge import distinguish, privacy_gain, standardize_in_place
from penstock.evaluation.attacks.defenses import SAMPLES_PER_BATCH, flat, mechanism_defense
from penstock.evaluation.attacks.user_space import MOBILITY_GROUPS, mobility_groups
from penstock.mechanisms.core.blocks import CountsOfBlock
from penstock.mechanisms.core.chain import Chain
from penstock.mechanisms.core.contract import ChainStep
from penstock.mechanisms.core.plugin import Checked, parameter
from penstock.mechanisms.raw import Raw
from reproductions.exposure import Targets
from reproductions.pyrgelis import COLUMNS, ROWS, WEEK, Binary, CabStudy, TargetPiece, subset_game, trade_off_table
from reproductions.saved import RESULTS
from reproductions.study import Figures, Tables

RAW = "raw"
#: Cells of the grid as points, for steps that make them coarse.
POINTS = [{"cell": f"{row}-{column}", "point": [column, row]} for row in range(ROWS) for column in range(COLUMNS)]


@dataclass(frozen=True, kw_only=True)
class NamedChain(Checked):
    """A defense, identified by its name in the paper."""

    name: str = parameter(doc="its name in the table")
    mechanism: tuple[ChainStep, ...] = parameter(doc="its steps, as in a run's configuration")


@dataclass(frozen=True, kw_only=True)
class PrivacyGain(CabStudy):
    """Attack the same targets with the same groups under every defense.

    Everybody has a place in one order, a cab of each mobility group in turn: the first n targets are among the first
    n + 1. Sampling is drawn anew for every aggregate, and the adversary knows the rate only.
    """

    targets: int = parameter(150, doc="people attacked, a third of each mobility group", at_least=3)
    samples: int = parameter(2400, doc="labelled aggregates of each target", at_least=8)
    group_size: int = parameter(250, doc="people in an aggregate", at_least=1)
    known: float = parameter(0.5, doc="share of the people whose locations are known", above=0, below=1)
    defenses: tuple[NamedChain, ...] = parameter((), doc="defenses to attack")

    def chosen(self, presence: Binary) -> Targets:
        """Return the first people, ordered so that mobility groups alternate."""
        groups = mobility_groups(presence)
        drawn = np.random.default_rng(self.seed).permutation(np.flatnonzero(groups >= 0))
        members = (drawn[groups[drawn] == group] for group in range(len(MOBILITY_GROUPS)))
        in_turn = itertools.chain.from_iterable(itertools.zip_longest(*members))
        return np.array([target for target in in_turn if target is not None][: self.targets])

    def pieces(self, presence: Binary) -> tuple[TargetPiece, ...]:
        """Return one piece per target."""
        return tuple(TargetPiece(int(target), RAW) for target in self.chosen(presence[:, :WEEK]))

    def measure(self, presence: Binary, piece: TargetPiece) -> Figures:
        """Compute the area under the curve for one target with each defense and without any."""
        sizes: dict[str, Any] = {"group_size": self.group_size, "known": self.known, "n_samples": self.samples}
        sizes |= {"n_components": self.components, "seed": self.seed}
        week = presence[:, :WEEK]
        game = subset_game(week, **sizes)
        samples = game.samples(piece.target)
        hidden = samples.labels[samples.n_train :]
        counts = game.space.counts(samples, np.arange(samples.labels.size))
        features = np.empty((len(counts), counts[0].size), np.float32)  # half of the time that doubles take
        thinned: dict[float, NDArray[Any]] = {}
        areas = {RAW: game.attack(piece.target).auc}
        for number, defense in enumerate(self.defenses):
            name, chain = defense.name, Chain.of(defense.mechanism)
            if chain.spatial is not None or chain.temporal is not None:
                areas[name] = subset_game(coarse(week, chain), **sizes).attack(piece.target).auc
                continue
            seen, seed = counts, [self.seed, piece.target, number]
            if chain.sampling is not None:
                rate = chain.sampling.rate
                if rate not in thinned:  # binomial counts are what sampling single memberships leaves
                    thinned[rate] = np.random.default_rng(seed).binomial(counts, rate)
                seen = thinned[rate]
            for begin in range(0, len(seen), SAMPLES_PER_BATCH):
                part = slice(begin, begin + SAMPLES_PER_BATCH)
                features[part] = flat(released(chain, seen[part], [*seed, begin]))
            standardize_in_place(features, samples.n_train)
            scores, _ = distinguish(features, samples.labels, samples.n_train, n_components=self.components)
            areas[name] = area_under_curve(hidden, scores)
        return {name: np.array([area]) for name, area in areas.items()}

    def tables(self, presence: Binary, measured: Mapping[TargetPiece, Figures]) -> Tables:
        """Return each defense's mean area and gain with 95 % intervals over targets, and quartiles of the gain."""
        names = (RAW, *(defense.name for defense in self.defenses))
        areas = {name: np.array([figures[name][0] for figures in measured.values()]) for name in names}
        gains = gain_table(areas)
        return {"membership_gain": gains, "membership_trade_off": trade_off_table(gains, RESULTS)}


def coarse(presence: Binary, chain: Chain) -> Binary:
    """Return presence in a chain's coarse cells and windows, repeated for all fine ones in them."""
    n_people, n_windows, _ = presence.shape
    if chain.temporal is not None:
        longer = np.arange(0, n_windows, chain.n_merged)
        presence = np.logical_or.reduceat(presence, longer, axis=1)[:, np.arange(n_windows) // chain.n_merged]
    if chain.spatial is not None:
        groups = chain.spatial.groups(POINTS)
        in_group = np.zeros((n_people, n_windows, groups.max() + 1), bool)
        for cell, group in enumerate(groups):
            in_group[..., group] |= presence[..., cell]
        presence = in_group[..., groups]
    return presence


def released(chain: Chain, counts: NDArray[Any], seed: list[int]) -> NDArray[np.float64]:
    """Release counts of shape (n_replicas, n_windows, n_cells) through the chain's counting steps.

    A step may have a method ``defended`` of counts and a generator, for many aggregates at a time.
    """
    reader = chain.reader
    if isinstance(reader, Raw):
        values = counts.astype(np.float64)
    elif isinstance(reader, CountsOfBlock):
        values = reader.without_noise(counts)
    elif hasattr(reader, "defended"):
        values = reader.defended(counts, np.random.default_rng(seed))
    else:
        defense = mechanism_defense(reader)
        assert defense is not None  # only raw counts are left as they are
        values = defense(counts, int(np.random.SeedSequence(seed).generate_state(1)[0]))
    for step in chain.after:
        values = step.transform(values)
    return values


def gain_table(areas: Mapping[str, NDArray[np.float64]]) -> pl.DataFrame:
    """Tabulate figure 6(b): mean and quartiles of each defense's gain, with areas of raw counts.

    ``gain`` is that of equation 1, with its normal 95 % interval; ``turned_round`` that of an adversary who answers
    the other way round where the area is below ½.

    >>> table = gain_table({"raw": np.array([1.0, 1.0]), "half": np.array([0.75, 0.4])})
    >>> table.select("defense", "n_targets", "auc", "gain", "turned_round").row(0)
    ('half', 2, 0.575, 0.25, 0.65)
    """
    rows = []
    for name, defended in areas.items():
        if name == RAW:
            continue
        gains = np.asarray(privacy_gain(areas[RAW], defended))
        error = 1.96 * gains.std(ddof=1) / np.sqrt(gains.size)
        quartiles = dict(zip(("q25", "median", "q75"), map(float, np.quantile(gains, (0.25, 0.5, 0.75)))))
        mirrored = np.asarray(privacy_gain(areas[RAW], np.maximum(defended, 1 - defended)))
        rows.append(
            {"defense": name, "n_targets": gains.size, "auc": float(defended.mean()), "gain": float(gains.mean())}
            | {"low": float(max(0.0, gains.mean() - error)), "high": float(min(1.0, gains.mean() + error))}
            | quartiles
            | {"turned_round": float(mirrored.mean())}
        )
    return pl.DataFrame(rows)
