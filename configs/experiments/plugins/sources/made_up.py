"""Made-up cities of which one thing is not as in a regular one: an event, a holiday, dead sensors, few people."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from penstock.mechanisms.core.plugin import parameter
from penstock.pipeline.sources.base import EventBlock, FileSource, Span

HOUR, DAY = 3_600_000, 86_400_000
#: A Monday.
START = 1_704_067_200_000
SIDE = 6
SCENES = ("regular", "stadium", "holiday", "outage", "eight_weeks", "sparse", "heavy_tails")
#: Mean count of a cell in an hour, but in a sparse city.
MEAN, SPARSE = 30.0, 0.4


@dataclass(frozen=True, kw_only=True)
class MadeUp(FileSource):
    """Counts of a city of 6 × 6 cells by the hour, and people drawn for them, each in at most one cell of an hour.

    Half of the cells are busy by day and half by night, in sizes that differ by a factor of about 20; weekends are
    half as busy by day.

    Parameters
    ----------
    scene
        ``stadium``: 220 people for three hours on five evenings, in a cell that has 8 otherwise; ``holiday``: a
        Thursday that is like a Sunday; ``outage``: three cells without anybody for 30 hours; ``eight_weeks``: 56 days
        instead of 14, which grow by a fifth; ``sparse``: 0.4 people in a cell; ``heavy_tails``: counts that vary by
        their own mean from hour to hour.
    days
        Length; unset: 14, or 56.
    """

    scene: str = parameter("regular", choices=SCENES, doc="what is not as in a regular city")
    seed: int = parameter(1, at_least=0, doc="decides everything about the city")
    n_users: int = parameter(3000, at_least=1, doc="people in the city")
    days: int | None = parameter(None, at_least=1, doc="length of the run; unset: 14, of eight_weeks 56")

    def __post_init__(self) -> None:
        start = START if self.from_ is None else self.from_
        object.__setattr__(self, "from_", start)
        if self.until is None:
            usual = 56 if self.scene == "eight_weeks" else 14
            object.__setattr__(self, "until", start + (self.days or usual) * DAY)
        super().__post_init__()

    def counts(self) -> NDArray[np.int64]:
        """People by hour and cell."""
        rng, n_cells = np.random.default_rng(self.seed), SIDE * SIDE
        assert self.from_ is not None
        assert self.until is not None
        hours = np.arange((self.until - self.from_) // HOUR)
        hour, day = hours % 24, hours // 24
        by_day = np.exp(-(((hour - 13) / 4.5) ** 2))[:, None]
        by_night = np.exp(-((((hour - 1 + 12) % 24 - 12) / 5.0) ** 2))[:, None]
        is_free = np.isin(day % 7, (5, 6)) | ((self.scene == "holiday") & (day == 10))
        works = rng.random(n_cells) < 0.5
        mean = np.where(works, by_day * np.where(is_free, 0.5, 1.0)[:, None], 0.3 * by_day + by_night)
        mean = mean * rng.lognormal(sigma=0.8, size=n_cells)
        mean *= (SPARSE if self.scene == "sparse" else MEAN) / mean.mean()
        if self.scene == "eight_weeks":
            mean *= np.linspace(1.0, 1.2, len(hours))[:, None]
        if self.scene == "heavy_tails":
            mean *= rng.gamma(1.0, size=mean.shape)
        mean *= np.exp(0.1 * rng.standard_normal(len(hours)))[:, None]  # weather
        if self.scene == "outage":
            mean[(day == 9) | ((day == 10) & (hour < 6)), :3] = 0.0
        if self.scene == "stadium":
            mean[:, 7] = 8.0
            mean[np.isin(day, (3, 5, 8, 10, 12)) & np.isin(hour, (19, 20, 21)), 7] = 220.0
        counts = rng.poisson(mean)
        too_many = counts.sum(axis=1) > self.n_users
        counts[too_many] = counts[too_many] * self.n_users // counts[too_many].sum(axis=1, keepdims=True)
        return counts

    def spans(self) -> list[Span]:
        """One span."""
        return [Span(0, ())]

    def read(self, span: Span) -> Iterator[EventBlock]:
        """One event in the middle of the cell for everybody who is counted, hour by hour in one block."""
        rng, counts = np.random.default_rng([self.seed, 1]), self.counts()
        assert self.from_ is not None
        users = np.concatenate([rng.permutation(self.n_users)[:n] for n in counts.sum(axis=1)])
        hour, cell = (np.repeat(index.ravel(), counts.ravel()) for index in np.indices(counts.shape))
        frame = pl.DataFrame(
            {
                "user": users.astype(np.int64),
                "time": self.from_ + hour * HOUR,
                "latitude": (cell // SIDE + 0.5) / 100,
                "longitude": (cell % SIDE + 0.5) / 100,
            }
        )
        yield from EventBlock(frame, frame.height).pieces(self.block_rows)

    def digests(self) -> dict[str, str]:
        """SHA-256 of the parameters that decide the events."""
        values = {name: value for name, value in asdict(self).items() if name != "block_rows"}
        return {"made_up": hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()}
