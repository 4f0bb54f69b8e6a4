"""Small random worlds: a configuration, the rows of a few people, and the same rows with one person's share changed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock import mechanisms
from penstock.mechanisms.core.noise_keys import new_key_file

START, HOUR = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp()), 3600
#: Cells of one degree each; users have numbers, or names where a world says so.
GRID = {"type": "grid", "south": 0, "west": 0, "rows": 2, "columns": 3, "north": 2, "east": 3}


@dataclass(frozen=True)
class Row:
    """One event: seconds from the start of the run, position in degrees, and when it is received."""

    user: int
    time: int
    latitude: float
    longitude: float
    arrival: int

    def moved(self, place: tuple[float, float]) -> Row:
        """The row at another place."""
        return replace(self, latitude=place[0], longitude=place[1])


Rows = tuple[Row, ...]


@dataclass(frozen=True)
class World:
    """Input of a run: sections without paths, rows in order of arrival, and the ends of several runs.

    ``step`` is the length in seconds of what one event shares; ``w`` that of a protected stretch in steps; ``first``
    the step that the run begins with; ``offsets`` how much later than that each of several runs begins, in seconds.
    """

    kind: str
    sections: dict[str, Any]
    rows: Rows
    n_windows: int
    step: int = HOUR
    w: int = 2
    first: int = 0
    named: bool = False
    ends: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    landmarks: tuple[int, ...] = ()
    units: tuple[str, ...] = ("person",)

    @property
    def mechanism(self) -> list[dict[str, Any]]:
        """Its steps."""
        return list(self.sections["mechanism"])

    @property
    def users(self) -> list[int]:
        """Users with at least one row."""
        return sorted({row.user for row in self.rows})

    @property
    def runs(self) -> list[tuple[int, int]]:
        """First second and number of windows of each run."""
        ends = self.ends or (self.n_windows,)
        offsets = self.offsets or (0,) * len(ends)
        return [(self.first * self.step + offset, end) for offset, end in zip(offsets, ends)]

    def written(self, folder: Path, rows: Rows, number: int = 0) -> str:
        """The configuration of one of the runs, as text; its input is written to a file."""
        begin, n_windows = self.runs[number]
        lines = ["user,time,latitude,longitude,arrival"]
        name = "u{}".format if self.named else str
        for row in rows:
            times = (row.time + START, row.arrival + START)
            lines.append(f"{name(row.user)},{times[0]},{row.latitude},{row.longitude},{times[1]}")
        (folder / "events.csv").write_text("\n".join(lines) + "\n")
        value = json.loads(json.dumps(self.sections))
        source = value["source"].get("of", value["source"])
        source |= {
            "type": "csv",
            "path": str(folder / "events.csv"),
            "from": _text(begin),
            "until": _text(begin + n_windows * self.step),
            "time_format": "unix_s",
            "user_type": "string" if self.named else "integer",
            "columns": {"user": "user", "time": "time", "latitude": "latitude", "longitude": "longitude"}
            | source.get("columns", {}),
        }
        if value.get("mode") == "deployment":
            key = folder / "noise.key"
            if not key.exists():
                new_key_file(key)
            value["noise_key"] = str(key)
        else:
            value["seed"] = 3
        if self.offsets:
            value["windows"]["origin"] = _text(begin)
        value["output"] = {"path": str(folder / "out"), "report": False, "ledger_source": "events"}
        return json.dumps(value)


def _text(seconds: int) -> str:
    return datetime.fromtimestamp(START + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Rows.


def place(random_: random.Random, stray: float = 0.1) -> tuple[float, float]:
    """A position in a cell, or outside of all."""
    if random_.random() < stray:
        return 5.25, 5.25
    return random_.randrange(2) + 0.25, random_.randrange(3) + 0.25 * random_.randint(1, 3)


def walk(random_: random.Random, user: int, n_rows: int, length: int, delay: int, stray: float = 0.1) -> list[Row]:
    """Rows of one person at times that differ, some outside the run and the area.

    They are received after up to ``delay``, and some before they have happened: clocks are wrong.
    """
    rows = []
    for at in random_.sample(range(-600, length + 600, 60), n_rows):
        ahead = delay and at > 0 and random_.random() < 0.1
        received = random_.randrange(at) if ahead else at + random_.randint(0, delay)
        rows.append(Row(user, at, *place(random_, stray), received))
    return rows


def crowd(
    random_: random.Random, length: int, delay: int = 0, n_users: int = 5, n_rows: int = 14, stray: float = 0.1
) -> Rows:
    """Rows of a few people in the order in which they are received, or in any where none is late."""
    rows = [
        row for user in range(n_users) for row in walk(random_, user, random_.randint(1, n_rows), length, delay, stray)
    ]
    random_.shuffle(rows)
    return tuple(sorted(rows, key=lambda row: row.arrival)) if delay else tuple(rows)


# Mechanisms, bounding, and the rest of a configuration.


def readers(random_: random.Random, n_windows: int, landmarks: bool) -> dict[str, Any]:
    """A mechanism that reads counts, of any kind."""
    epsilon = random_.choice([0.5, 1.0, 3.0])
    kinds: list[dict[str, Any]] = [
        {"type": "discrete_laplace", "epsilon": epsilon},
        {"type": "laplace", "epsilon": epsilon},
        {"type": "discrete_gaussian", "rho": epsilon},
        {"type": "gaussian", "rho": epsilon},
        {"type": "fpa", "epsilon": epsilon, "coefficients": 1, "block": 2},
        {"type": "fast", "epsilon": epsilon, "publications": 2},
        {"type": "hierarchy", "rho": epsilon, "fan_out": 2},
        {"type": "rescue_dp", "epsilon": epsilon, "w": 2},
        {"type": "pegasus", "epsilon": epsilon, "longest": 3},
        {"type": "correlated", "rho": epsilon, "w": 2, "band": 3},
        *({"type": f"w_event_{one}", "epsilon": epsilon, "w": 2} for one in ("uniform", "sample", "bd", "ba")),
    ]
    if landmarks:
        kinds += [{"type": f"landmark_{one}", "epsilon": epsilon} for one in ("uniform", "skip", "adaptive")]
    return random_.choice(kinds)


BEFORE: tuple[dict[str, Any], ...] = (
    {"type": "spatial_generalization", "rows": 1, "columns": 2},
    {"type": "temporal_generalization", "windows": 2},
    {"type": "sampling", "rate": 0.5},
    {"type": "sampling", "rate": 0.5, "unit": "user"},
)
AFTER: tuple[dict[str, Any], ...] = (
    {"type": "suppress_small", "threshold": 2},
    {"type": "fixed_ranges", "width": 3},
    {"type": "filter"},
    {"type": "kalman"},
)


def sections(random_: random.Random, steps: list[dict[str, Any]], deployed: bool, **changes: Any) -> dict[str, Any]:
    """A configuration; a deployment releases what a mechanism would receive, which is how its counts are seen."""
    bounding: dict[str, Any] = {"max_cells": random_.randint(1, 4)}
    bounding["keep"] = random_.choice(["hash", "first", "last", "most_frequent"])
    if any(step["type"] == "fpa" for step in steps):
        bounding |= {"max_windows": random_.randint(1, 2)}
        if random_.random() < 0.5:
            bounding["max_block_cells"] = bounding["max_cells"] + random_.randint(0, 1)
    value: dict[str, Any] = {
        "name": "world",
        "mode": "deployment" if deployed else "simulation",
        "source": {},
        "space": GRID,
        "windows": {"type": "fixed", "size": "1h"},
        "bounding": bounding,
        "mechanism": steps,
        "accountants": [{"type": "composition", "w": 2}],
    }
    if deployed:
        value |= {"allow_no_guarantee": True, "allow_empty": True}
    return value | changes


def _steps(random_: random.Random, n_windows: int, landmarks: bool, deployed: bool) -> list[dict[str, Any]]:
    before = [step for step in BEFORE[:2] if random_.random() < 0.2]
    before += random_.sample(BEFORE[2:], 1) if random_.random() < 0.25 else []
    longer = any(step["type"] == "temporal_generalization" for step in before)
    reader = {"type": "raw"} if deployed else readers(random_, n_windows, landmarks and not longer)
    kind = mechanisms.get(reader["type"])
    if longer and reader["type"] == "fpa":
        before = [step for step in before if step["type"] != "temporal_generalization"]
    promised = kind.examples()[0].guarantee
    if not promised.may_be_sampled:
        before = [step for step in before if step["type"] != "sampling"]
    weighed = promised.independent and reader["type"] != "fpa"  # else no count has noise of its own to be weighed by
    after = [step for step in AFTER if weighed or step["type"] not in ("filter", "kalman")]
    return [*before, reader, *([] if deployed or random_.random() < 0.7 else random_.sample(after, 1))]


def files(random_: random.Random) -> World:
    """Finite input over fixed windows: a person, whole windows of a person, landmarks, and one of several cells."""
    n_windows = random_.randint(2, 6)
    deployed = random_.random() < 0.4
    steps = _steps(random_, n_windows, True, deployed)
    value = sections(random_, steps, deployed)
    landmarks: tuple[int, ...] = ()
    if any(step["type"].startswith("landmark") for step in steps):
        landmarks = tuple(random_.sample(range(1, n_windows + 1), 2))
        value["landmarks"] = {"windows": sorted(landmarks)}
    units = ["person"]
    if not {"temporal_generalization", "fpa"} & {step["type"] for step in steps}:
        units += ["step", "stretch"] + (["event"] if value["bounding"]["max_cells"] > 1 else [])
        units += ["landmarks"] if landmarks else []
    rows = crowd(random_, n_windows * HOUR)
    named = random_.random() < 0.5
    return World("files", value, rows, n_windows, named=named, landmarks=landmarks, units=tuple(units))


def parts(random_: random.Random) -> World:
    """Part of what bounding chooses from: one event of a window with one cell, one window of a longer one."""
    world = files(random_)
    longer = {"type": "temporal_generalization", "windows": 2}
    bounding = {"max_cells": 1, "keep": world.sections["bounding"]["keep"]}
    steps: list[dict[str, Any]] = [{"type": "discrete_laplace", "epsilon": 1.0}]
    units: tuple[str, ...] = ("event",)
    if random_.random() < 0.5:
        steps, units = [longer, *steps], ("event", "step", "stretch")
    value = world.sections | {"mechanism": steps, "bounding": bounding, "mode": "simulation"}
    value = {
        name: part for name, part in value.items() if name not in ("landmarks", "allow_no_guarantee", "allow_empty")
    }
    return replace(world, kind="parts", sections=value, landmarks=(), units=units)


def _reading(random_: random.Random, kind: str, steps: list[dict[str, Any]], units: tuple[str, ...]) -> World:
    """Finite input with the given steps."""
    n_windows = random_.randint(2, 6)
    rows = crowd(random_, n_windows * HOUR)
    value = sections(random_, steps, False)
    return World(kind, value, rows, n_windows, named=random_.random() < 0.5, units=units)


def blocks(random_: random.Random) -> World:
    """Blocks of windows, in which bounding chooses windows and cells."""
    block = random_.randint(2, 3)
    reader = {"type": "fpa", "epsilon": 1.0, "coefficients": 1, "block": block}
    world = _reading(random_, "blocks", [reader], ("person",))
    bounding = world.sections["bounding"] | {"max_windows": random_.randint(1, block)}
    if random_.random() < 0.7:
        bounding["max_block_cells"] = bounding["max_cells"] + random_.randint(0, 1)
    return replace(world, sections=world.sections | {"bounding": bounding})


def decisions(random_: random.Random) -> World:
    """Mechanisms that follow their own releases, and those that count cells together."""
    kinds: list[dict[str, Any]] = [
        {"type": "fast", "epsilon": 1.0, "publications": random_.randint(1, 3)},
        {"type": "fast", "rho": 0.5, "noise": "discrete_gaussian", "publications": 2},
        {"type": "hierarchy", "rho": 1.0, "fan_out": random_.randint(2, 3)},
        *({"type": f"w_event_{one}", "epsilon": 1.0, "w": random_.randint(1, 3)} for one in ("bd", "ba")),
    ]
    units = ("person", "step", "stretch")
    return _reading(random_, "decisions", [random_.choice(kinds)], units)


def periods(random_: random.Random) -> World:
    """A bound on each person's whole budget periods: what goes from one window makes room in later ones."""
    n_windows = random_.randint(2, 6)
    steps: list[dict[str, Any]] = [{"type": random_.choice(["period_uniform", "fast"]), "epsilon": 1.0}]
    changes: dict[str, Any] = {"budget_period": f"{random_.randint(1, n_windows)}h"}
    value = sections(random_, steps, False, **changes)
    value["bounding"]["max_per_period"] = random_.randint(1, 5)
    rows = crowd(random_, n_windows * HOUR)
    return World("periods", value, rows, n_windows, units=("person", "step", "event", "stretch"))


def _live(random_: random.Random, kind: str, **source: Any) -> World:
    n_windows = random_.randint(2, 5)
    deployed = random_.random() < 0.5
    steps = [{"type": "raw"} if deployed else {"type": "discrete_laplace", "epsilon": 1.0}]
    late = random_.choice([0, 600])
    windows = {"type": "fixed", "size": "1h", "allowed_lateness": f"{late}s"}
    value = sections(random_, steps, deployed, windows=windows)
    value["source"] = {"type": "stream", "of": source.pop("of", {}), **source}
    rows = crowd(random_, n_windows * HOUR, delay=random_.choice([300, 2400]))
    return World(kind, value, rows, n_windows, named=random_.random() < 0.5, units=("person", "step"))


def replays(random_: random.Random) -> World:
    """A stream in the order of time."""
    return _live(random_, "replays", order="time")


def disorder(random_: random.Random) -> World:
    """A stream in the order in which rows came, with no clock but the rows."""
    return _live(random_, "disorder", order="arrival", disorder=random_.choice(["0s", "5m"]))


def arrivals(random_: random.Random) -> World:
    """A stream whose rows say when they were received."""
    return _live(random_, "arrivals", order="arrival", disorder="0s", of={"columns": {"arrival": "arrival"}})


def repeats(random_: random.Random) -> World:
    """Several runs over the same days."""
    world = files(random_)
    steps = [{"type": "discrete_laplace", "epsilon": random_.choice([0.5, 1.0])}]
    value = sections(random_, steps, False)
    ends = tuple(random_.randint(1, world.n_windows) for _ in range(3))
    return replace(world, kind="repeats", sections=value, ends=ends, landmarks=(), units=("person",))


def _traces(random_: random.Random, kind: str, units: tuple[str, ...], stray: float) -> World:
    n_windows = random_.randint(1, 4)
    family = {"noise": "planar_laplace", "radius": 50.0, "epsilon": 1.0}
    steps: list[dict[str, Any]] = [
        {"type": "planar_laplace", "epsilon": 1.0, "radius": 50.0},
        {"type": "landmark_uniform", **family},
        {"type": "landmark_skip", **family},
        {"type": "landmark_uniform", "noise": "planar_gaussian", "radius": 50.0, "rho": 0.5},
    ]
    value = sections(random_, [random_.choice(steps)], random_.random() < 0.5)
    value |= {"windows": {"type": "timestamps"}, "accountants": [{"type": "landmark_budget"}]}
    value["landmarks"] = {"windows": [2]}
    value.pop("bounding")
    rows = crowd(random_, n_windows * HOUR, n_users=4, n_rows=8, stray=stray)
    return World(kind, value, rows, n_windows, named=random_.random() < 0.5, units=units)


def traces(random_: random.Random) -> World:
    """Traces inside the area: a point that moves, a point more or less, a person more or less."""
    return _traces(random_, "traces", ("person", "moved", "event"), 0.0)


def edges(random_: random.Random) -> World:
    """Traces that leave the area, or have two points at one instant."""
    return _traces(random_, "edges", ("left", "tied"), 0.1)


KINDS: dict[str, Callable[[random.Random], World]] = {
    kind.__name__: kind
    for kind in (
        files,
        parts,
        periods,
        blocks,
        decisions,
        replays,
        disorder,
        arrivals,
        repeats,
        traces,
        edges,
    )
}


def one_in_every_cell(random_: random.Random, steps: list[dict[str, Any]], first: int = 0) -> World:
    """A deployment in which one person is alone in every cell of every window: 36 people."""
    n_windows = 3
    value = sections(random_, steps, True, space=GRID | {"rows": 6, "columns": 6})
    rows = [
        Row(cell, at := (first + window) * HOUR + 60, (cell // 6) / 3 + 0.1, (cell % 6) / 2 + 0.1, at)
        for cell in range(36)
        for window in range(n_windows)
    ]
    return World("alone", value, tuple(rows), n_windows, first=first)


# Neighbours.


@dataclass(frozen=True)
class Change:
    """One person's share that is changed: which unit, whose, and the rows before and after."""

    unit: str
    user: int
    before: Rows
    after: Rows

    @property
    def touched(self) -> Rows:
        """The rows that only one of the two has."""
        return tuple({*self.before} ^ {*self.after})


def change(random_: random.Random, world: World) -> Change:
    """A neighbour of a world."""
    unit = random_.choice(world.units)
    user = random_.choice(world.users)
    user_rows = [row for row in world.rows if row.user == user]
    if unit in ("moved", "left", "tied"):
        return _moved(random_, world, unit, random_.choice(user_rows))
    if unit == "event":
        gone = {random_.choice(user_rows)}
    elif unit == "person":
        gone = set(user_rows)
    else:
        steps = _steps_of(random_, world, unit)
        gone = {row for row in user_rows if row.time // world.step in steps}
    left = tuple(row for row in world.rows if row not in gone)
    both = (world.rows, left)
    return Change(unit, user, *(both if random_.random() < 0.5 else both[::-1]))


def _steps_of(random_: random.Random, world: World, unit: str) -> set[int]:
    first = random_.randrange(max(1, world.n_windows))
    if unit == "landmarks":
        return {window - 1 for window in world.landmarks} | {first}
    return set(range(first, first + (world.w if unit == "stretch" else 1)))


def _moved(random_: random.Random, world: World, unit: str, row: Row) -> Change:
    rows = list(world.rows)
    at = rows.index(row)
    if unit == "tied":
        rows.append(row.moved(place(random_, 0.0)))
    before, target = tuple(rows), (5.25, 5.25) if unit == "left" else place(random_, 0.0)
    rows[at] = row.moved(target)
    return Change(unit, row.user, before, tuple(rows))


def smaller(change: Change) -> Iterable[Change]:
    """Yield worlds with fewer rows: without one other person, then without one row that both have."""
    both = [row for row in change.before if row in change.after]
    drops: Sequence[set[Row]] = [
        *({row for row in both if row.user == user} for user in sorted({row.user for row in both} - {change.user})),
        *({row} for row in both),
    ]
    for gone in drops:
        if gone:
            before, after = (tuple(row for row in rows if row not in gone) for rows in (change.before, change.after))
            yield replace(change, before=before, after=after)
