"""Studies of San Francisco cabs from Pyrgelis, Troncoso and De Cristofaro (2020): presence, games, and privacy
trade-offs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.evaluation.attacks.game import MembershipGame
from penstock.evaluation.attacks.user_space import draw_targets
from penstock.mechanisms.core.plugin import ParameterError, parameter
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import load
from reproductions.exposure import Targets
from reproductions.study import Study

#: Presence of people, shape (n_people, n_windows, n_cells).
Binary = NDArray[np.bool_]

#: One week of the cabs by the hour; the paper has three.
CABS = Path(__file__).parents[1] / "configs" / "datasets" / "sf_cabs_week.yaml"
UNTIL = "2008-06-09T00:00:00Z"
ROWS = COLUMNS = 10
HOURS = 504
#: Hours of the week under attack; mechanisms over a block take it as one.
WEEK = 168


def cab_presence(folder: str) -> Binary:
    """Read when each cab was in which cell over three weeks, shape (n_cabs, 504, 100). Cabs are sorted by file name.

    ``folder``: the unpacked CRAWDAD data set epfl/mobility, one file ``new_*.txt`` a cab.

    A cab in several cells of an hour is in all of them. The box and the dates are this project's reading of Pyrgelis,
    Troncoso, De Cristofaro, POMACS 2020, section 2.1: they give its 534 cabs, 78 ± 6 cells and 340 ± 94 active hours.
    """
    plan = make_plan(load(CABS, [f"source.path={folder}", f"source.until={UNTIL}"]))
    source = plan.config.source.from_start()
    seen = []
    for block in (block for span in source.spans() for block in source.read(span)):
        frame, window = block.frame, plan.grid.calendar.index(block.frame["time"].to_numpy())
        placed = frame.select("user").with_columns(window=window - 1, cell=np.asarray(plan.space.place(frame)))
        seen.append(placed.filter(pl.col("window") >= 0, pl.col("cell") >= 0).unique())
    visits = pl.concat(seen).unique()
    cabs = visits["user"].unique().sort()
    presence = np.zeros((len(cabs), HOURS, ROWS * COLUMNS), bool)
    presence[cabs.search_sorted(visits["user"]), visits["window"], visits["cell"]] = True
    return presence


def synthetic_presence(n_people: int, seed: int) -> Binary:
    """Generate synthetic presence of the same shape as the cab data. People and cells differ in how active they are.

    >>> synthetic_presence(3, seed=1).shape
    (3, 504, 100)
    """
    rng = np.random.default_rng(seed)
    busy = rng.gamma(1.0, 0.1, (n_people, 1, 1)) * rng.gamma(0.5, 1.0, (1, ROWS * COLUMNS, 1))
    return (rng.random((n_people, ROWS * COLUMNS, HOURS)) < np.clip(busy, 0.001, 0.9)).swapaxes(1, 2)


class TargetPiece(NamedTuple):
    """A unit of work: all attacks on one target that share a name."""

    target: int
    name: str


@dataclass(frozen=True, kw_only=True)
class CabStudy(Study):
    """Base class for studies that attack one cab at a time.

    Who is drawn as a target is drawn again when more are asked for (`draw_targets`).
    """

    not_decisive: ClassVar[tuple[str, ...]] = ("path", "targets")

    path: str | None = parameter(
        None, kind="path", doc="folder of the San Francisco cabs (CRAWDAD epfl/mobility); unset: made-up people"
    )
    people: int = parameter(120, doc="how many made-up people there are, where path is unset", at_least=3)
    targets: int = parameter(30, doc="people attacked, a third of each mobility group", at_least=3)
    components: int = parameter(600, doc="principal components at most", at_least=1)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The folder that contains the cab data."""
        return (self.path,) if self.path else ()

    def data(self) -> Binary:
        """Return presence on a 10 × 10 grid in every hour of three weeks, shape (n_people, 504, 100)."""
        return synthetic_presence(self.people, self.seed) if self.path is None else cab_presence(self.path)

    def chosen(self, presence: Binary) -> Targets:
        """Draw people to attack, split as in `draw_targets`, barely mobile ones first."""
        n_seen = np.count_nonzero(presence.any(axis=(1, 2)))
        if n_seen < self.targets:
            raise ParameterError("study.targets", self.targets, f"at most {n_seen}, the people who are seen")
        return draw_targets(presence, self.targets, self.seed)


#: Experiment with the utility of each family of defenses, and how it names a setting.
EXPERIMENTS = {
    "SPG": "sfc_spatial_generalization",
    "TG": "sfc_temporal_generalization",
    "SPG+TG": "sfc_temporal_generalization",
    "DGFR": "sfc_fixed_ranges",
    "DGAR": "sfc_adaptive_ranges",
    "SSC": "sfc_suppress_small",
    "SLP": "sfc_suppress_unpopular",
    "SMP": "sfc_sampling",
    "PSC": "sfc_perturb_small",
    "FPA": "sfc_fpa",
    "SPSC": "sfc_sampling_perturb_small",
    "SFPA": "sfc_sampling_fpa",
}
#: Settings whose reading in these experiments, the one that is attacked, has another name.
VARIANTS = {
    "SPG+TG 1x1, 1 week": "1 week, 1x1",
    "DGAR x′ = 1": "x′ = 1, all middles",
    "DGAR x′ = 2": "x′ = 2, all middles",
    "FPA ε = 1": "ε = 1, both halves",
    "FPA ε = 10": "ε = 10, both halves",
    "SFPA w = 0.8": "w = 0.8, both halves",
}


def trade_off_table(gains: pl.DataFrame, results: Path) -> pl.DataFrame:
    """Tabulate figures 7 to 10: privacy gain against utility loss, for each defense for which both are known.

    ``gains``: columns ``defense`` and ``gain``. ``results``: folder with the tables of the experiments sfc_*.

    Returns ``defense``, ``family``, ``metric``, ``privacy_gain`` (equation 1: an area below ½ counts as no gain) and
    ``utility_loss``: the distance of the metric from that of the raw counts, whose r is below 1, since counts of some
    cells are constant.
    """
    raw = pl.read_csv(results / "utility_differences.csv").filter(defense="true counts", reading="as here")
    rows = []
    for metric in ("mre", "mre_top", "hotspot_f1", "hotspot_rank_tau", "js_distance", "pearson"):
        for defense, gain in gains.select("defense", "gain").iter_rows():
            family, _, setting = defense.partition(" ")
            path = results / f"{EXPERIMENTS[family]}.csv"
            if not path.exists():
                continue
            utility = pl.read_csv(path).filter(variant=VARIANTS.get(defense, setting), measure=metric)["mean"]
            rows += [
                {"defense": defense, "family": family, "metric": metric, "privacy_gain": gain, "utility_loss": loss}
                for loss in (utility - raw[metric].item()).abs()
            ]
    return pl.DataFrame(rows)


PAST_PRIORS = ("same_groups", "different_groups")


def subset_game(presence: Binary, **sizes: Any) -> MembershipGame:
    """Return the game of section 3.2, over the first week. The adversary knows the locations of some people."""
    week = presence[:, :WEEK]
    return MembershipGame(week, challenges="others", observation=WEEK, inference=WEEK, **sizes)


def past_game(presence: Binary, prior: str, *, groups: int, **sizes: Any) -> MembershipGame:
    """Return section 3.3's game: groups of the first two weeks are known, the third is the challenge."""
    periods: dict[str, Any] = {"observation": (0, 2 * WEEK), "inference": (2 * WEEK, 3 * WEEK)}
    return MembershipGame(presence, prior=prior, groups=groups, n_samples=3 * groups, **periods, **sizes)
