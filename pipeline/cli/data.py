"""Commands that write files from events: ``init``, ``convert``, ``generate`` and ``learn``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipeline import DONE
from penstock.pipeline.cli.command import Command, add_configuration, show, show_figures

if TYPE_CHECKING:
    from penstock.pipeline.config.run import RunConfig
    from penstock.pipeline.sources.base import Source

DATA_WAS_READ = "a look at the data: a deployment takes it from public data, or from other people's"


def convert(source: Source, out: str | os.PathLike[str]) -> dict[str, Any]:
    """Write all of a source's events to one Parquet file, and its rejected rows to ``<out>.rejects.jsonl``.

    The ``parquet`` source reads the file without further settings. Columns are those of an `EventBlock`, ``time`` as a
    timestamp in milliseconds UTC. Both files appear under their names only when they are complete.

    A file ``out`` that exists is replaced. Raises `DataError` if the source cannot be read, or has no rows at all.

    >>> import tempfile
    >>> from penstock.pipeline.sources.synthetic import Synthetic
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     summary = convert(Synthetic(n_users=10, days=1), folder + "/city.parquet")
    >>> summary["n_rows"] == summary["n_events"], summary["n_users"]
    (True, 10)
    """
    import polars as pl
    import pyarrow.parquet as pq

    from penstock.mechanisms.core.plugin import DataError
    from penstock.pipeline.atomic import replacing

    path = Path(out)
    rejects_path = Path(f"{path}.rejects.jsonl")
    n_rejected, writer = 0, None
    with replacing(rejects_path) as rejects, replacing(path) as events, ExitStack() as stack:
        lines = stack.enter_context(rejects.open("w", encoding="utf-8"))
        for block in source.all_blocks():
            n_rejected += len(block.rejects)
            lines.writelines(json.dumps(reject.as_dict(), ensure_ascii=False) + "\n" for reject in block.rejects)
            frame = block.frame.with_columns(pl.col("time").cast(pl.Datetime("ms", "UTC")))
            table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())  # string views are not read everywhere
            if writer is None:
                writer = stack.enter_context(pq.ParquetWriter(events, table.schema, compression="zstd"))
            writer.write_table(table)
        if writer is None:
            raise DataError(f"{type(source).__name__.lower()}: there is no row to convert")
    if not n_rejected:
        rejects_path.unlink()
    times = pl.col("time").dt.epoch("ms")
    columns = (pl.len(), pl.col("user").n_unique(), times.min().alias("first"), times.max().alias("last"))
    written = pl.scan_parquet(path, glob=False).select(*columns).collect(engine="streaming")
    n_events, n_users, first, last = written.row(0)
    return {
        "path": str(path),
        "rejects_path": str(rejects_path) if n_rejected else None,
        "n_rows": n_events + n_rejected,
        "n_events": n_events,
        "n_rejected": n_rejected,
        "n_users": n_users,
        "first": first,
        "last": last,
        "n_bytes": path.stat().st_size,
    }


def learn_to_file(
    config: RunConfig, path: str | Path, n_windows: int | None = None, smoothing: float = 0.1, unseen: bool = False
) -> dict[str, Any]:
    """Learn a transition matrix and an initial distribution and write both. Return statistics and period bounds.

    ``n_windows``: from the beginning; None: what the accountants of the configuration ask for, or all. ``smoothing``:
    steps added to each count. ``unseen``: not being seen is a state of its own.
    """
    from penstock.accountants.correlation.adversary import learn
    from penstock.mechanisms.core.plugin import ParameterError
    from penstock.pipeline.config.plan import make_plan
    from penstock.pipeline.experiments.choose import suggested_bounds
    from penstock.pipeline.windows.calendar import format_time

    if Path(path).suffix != ".npz":
        raise ParameterError("out", str(path), "a file that ends in .npz")
    if n_windows is not None and n_windows < 2:
        raise ParameterError("windows", n_windows, "at least 2, for there to be a step")
    asked = max((accountant.training_windows or 0 for accountant in config.accountants), default=0)
    plan = make_plan(replace(config, accountants=()))
    n_windows = n_windows or asked or plan.grid.n_windows
    training = plan.people.training(n_windows)
    learned = learn(training, plan.space.cells, smoothing, unseen)
    until = format_time(plan.grid.calendar.end(training.n_windows))
    source = config.output.ledger_source or config.name
    when = {"source": source, "from": format_time(plan.grid.calendar.start(1)), "until": until}
    learned = replace(learned, facts=learned.facts | when)
    learned.write(path)
    facts = {"states": len(learned.states), "steps": int(learned.transitions.sum()), **learned.facts}
    bounds = suggested_bounds(plan, n_windows, config.mechanism[0])
    return {"file": str(path), **facts, **bounds, **({"bounds_from": DATA_WAS_READ} if bounds else {})}


def learn_profile(config: RunConfig, path: str | Path) -> dict[str, Any]:
    """Learn typical counts from a run's releases and write them to a file that a filter can use as its ``profile``.

    The run is made first, or gone on with, in its own folder and on its own ledger, unless it has finished there. It is
    charged as any other; the profile is a function of its releases, and costs nothing more. Raises `ParameterError` if
    the releases are not noisy counts alone, and `DataError` if nothing was released.
    """
    import numpy as np

    from penstock.mechanisms.core import usual_days
    from penstock.mechanisms.core.chain import Chain
    from penstock.mechanisms.core.contract import DAY, DAY_TYPES
    from penstock.mechanisms.core.plugin import DataError, ParameterError
    from penstock.mechanisms.core.usual_days import UsualCounts
    from penstock.mechanisms.filter import Filter, noise_variance
    from penstock.pipeline.config.plan import ledger_path, make_plan
    from penstock.pipeline.run import run
    from penstock.pipeline.windows.calendar import format_time

    plan = make_plan(config)
    if plan.on_points or plan.chain.after:
        expected = "a mechanism on counts, with nothing after it: a profile is the mean of its noisy counts"
        raise ParameterError("mechanism", [type(step).__name__.lower() for step in config.mechanism], expected)
    Chain.of([*config.mechanism, Filter()])  # refuses noise that is not that of single counts
    result = run(config, runner="local", resume=(plan.folder / "public" / "manifest.json").exists())
    rows = result.releases.sort("window")
    if not (rows["action"] == "published").any():
        cure = "if the ledger refused these windows, take a profile learned from them before, or other days"
        raise DataError(f"{plan.folder}: nothing was released that a profile could be learned from; {cure}")
    facts = plan.facts()
    n_slots, place = min(24, facts.windows_per_day), {name: number for number, name in enumerate(plan.space.cells)}
    state = usual_days.start(facts, n_slots)
    for number, in_window in ((int(key[0]), group) for key, group in rows.group_by("window", maintain_order=True)):
        window, at = plan.grid.window(number), np.array([place[name] for name in in_window["cell"]])
        values, variance, seen = np.zeros(facts.n_cells), np.ones(facts.n_cells), np.zeros(facts.n_cells, bool)
        values[at], seen[at] = in_window["value"].to_numpy(), (in_window["action"] == "published").to_numpy()
        variance[at] = noise_variance(str(in_window["noise"][0]), in_window["scale"].to_numpy())
        noisy = usual_days.Noisy(np.where(seen, values, 0.0), np.where(seen, variance, 1.0), seen)
        row = window.day_type * n_slots + window.time_of_day * n_slots // DAY
        noise = np.asarray(noisy.variance[seen].mean() if seen.any() else 1.0)
        state |= usual_days.learned(row, noisy, usual_days.usual([row], state)[0], noise, facts.windows_per_day, state)
    counts = usual_days.usual(range(len(DAY_TYPES) * n_slots), state).reshape(len(DAY_TYPES), n_slots, -1)
    calendar, n_windows = plan.grid.calendar, int(rows["window"][-1])
    about = {
        "source": config.output.ledger_source or config.name,
        "run": result.manifest["ledger"]["run"],
        "from": format_time(calendar.start(1)),
        "until": format_time(calendar.end(n_windows)),
        "windows": n_windows,
    }
    UsualCounts(counts=counts, cells=plan.space.cells, facts=about).write(path)
    return {"file": str(path), **about, **({"ledger": str(ledger_path(plan))} if config.mode == "deployment" else {})}


def _configure_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("type", help="source type, for instance cabspotting")
    parser.add_argument("path", help="folder, file or archive of the data set")
    _configure_generate(parser)


def _configure_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", help="Parquet file to write")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="parameter of the source")


def _write_events(arguments: argparse.Namespace) -> int:
    from penstock.pipeline.config.build import load_plugin
    from penstock.pipeline.sources.base import Source

    settings = arguments.set
    if arguments.command == "convert":
        settings = [f"path={arguments.path}", *settings]
    source = load_plugin(Source, getattr(arguments, "type", "synthetic"), settings)
    show_figures(arguments, convert(source, arguments.target))
    return DONE


def _configure_learn(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    parser.add_argument("--out", metavar="FILE", help="a .npz file (needed without --profile)")
    parser.add_argument("--profile", action="store_true", help="learn typical counts from a run's releases")
    parser.add_argument("--windows", type=int, metavar="N", help="how many windows to learn from (default: all)")
    parser.add_argument("--smoothing", type=float, default=0.1, metavar="S", help="steps added to each count")
    parser.add_argument("--unseen", action="store_true", help="treat not being seen as a separate state")


def _learn(arguments: argparse.Namespace) -> int:
    from penstock.pipeline.atomic import make_folder
    from penstock.pipeline.config.run import load

    config = load(arguments.config, arguments.set)
    make_folder(Path(arguments.out or "").parent)
    if arguments.profile:
        learned = learn_profile(config, arguments.out or "profile.json")
    else:
        learned = learn_to_file(config, arguments.out or "", arguments.windows, arguments.smoothing, arguments.unseen)
    show_figures(arguments, learned)
    return DONE


#: Parts of an event, and what a column of each holds.
_PARTS = {
    "user": "who it is (empty: no column says)",
    "time": "when, or the hour of the day",
    "date": "the day, where time is an hour of the day",
    "latitude": "degrees north",
    "longitude": "degrees east",
    "point": "both, as WKT or WKB",
    "place": "name of the place",
}


def _configure_init(parser: argparse.ArgumentParser) -> None:
    text = "a CSV, Parquet or JSON file, compressed or not, a folder of them, or a pattern in quotes"
    parser.add_argument("path", nargs="+", metavar="FILE.csv", help=text)
    parser.add_argument("--out", metavar="FILE.yaml", help="file to write (the name of the CSV file, here)")
    parser.add_argument("--time-zone", default="UTC", metavar="ZONE", help="zone of windows and times without offset")
    columns = parser.add_argument_group("where a guess is wrong")
    for part, help in _PARTS.items():
        columns.add_argument(f"--{part}", metavar="COLUMN", help=help)
    columns.add_argument("--time-format", metavar="F", help="iso, unix_s, unix_ms, or such as '%%d.%%m.%%Y %%H:%%M'")
    columns.add_argument("--decimal", choices=(".", ","), help="decimal separator")
    columns.add_argument("--encoding", metavar="E", help="text encoding, such as cp1252")
    columns.add_argument("--stops", metavar="FILE", help="stops to count at: GTFS, GBFS, or a list of them")
    text = "most that a day may cost one person, in nats (asked for on a terminal; else 2)"
    parser.add_argument("--epsilon-per-day", type=float, metavar="E", help=text)


def _init(arguments: argparse.Namespace) -> int:
    from penstock.mechanisms.core.plugin import DataError, ParameterError
    from penstock.pipeline.atomic import write_first
    from penstock.pipeline.config.drafting.columns import UserHints
    from penstock.pipeline.config.drafting.draft import draft, name_of
    from penstock.pipeline.config.run import loads
    from penstock.pipeline.output.loss import describe_losses
    from penstock.pipeline.output.rehearsal import budget_unit, expected_losses, rehearse

    if len(arguments.path) > 1:
        raise ParameterError("FILE.csv", arguments.path, "one file, or for several a folder or a pattern in quotes")
    given = {part: value for part in _PARTS if (value := getattr(arguments, part)) is not None}
    stated = UserHints(given, arguments.time_format, arguments.decimal, arguments.encoding)
    path, epsilon = arguments.path[0], _epsilon_per_day(arguments)
    drafted = draft(path, arguments.time_zone, epsilon, stated, arguments.stops)
    out = arguments.out or f"{name_of(path)}.yaml"
    if not write_first(Path(out), drafted.text.encode()):
        raise DataError(f"{out}: is there already; give another name with --out")
    rehearsal = rehearse(loads(drafted.text)) if drafted.is_whole else None
    losses = rehearsal and expected_losses(rehearsal)
    cost = [describe_losses(losses, drafted.one, budget_unit(rehearsal))] if rehearsal and losses else []
    then = "write what is marked FIXME in it"
    if drafted.is_whole:
        then = f"now look at it, then: penstock run {out} --runner local"
    show(arguments, {"file": str(out), "notes": drafted.notes}, [*drafted.notes, *cost, f"wrote {out}; {then}"])
    return DONE


def _epsilon_per_day(arguments: argparse.Namespace) -> float:
    """Return the daily budget given by the option or at the prompt, or the default."""
    from penstock.mechanisms.core.plugin import ParameterError
    from penstock.pipeline.config.drafting.facts import EPSILON_PER_DAY
    from penstock.pipeline.output.loss import even_odds

    if arguments.epsilon_per_day is not None:
        return float(arguments.epsilon_per_day)
    if arguments.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return EPSILON_PER_DAY
    meanings = ", ".join(f"{epsilon:g}: {even_odds(epsilon)}" for epsilon in (0.5, 1.0, 2.0, 5.0))
    print("ε a day: how sure someone may become that a person was there, who thought it as likely as not before:")
    answer = input(f"  {meanings} [{EPSILON_PER_DAY:g}] ").strip()
    try:
        return float(answer) if answer else EPSILON_PER_DAY
    except ValueError:
        raise ParameterError("epsilon_per_day", answer, "a number above 0") from None


INIT = Command("init", "draft a configuration from a look at a file of one's own", _configure_init, _init)
CONVERT = Command("convert", "convert a data set in its original format to Parquet", _configure_convert, _write_events)
GENERATE = Command("generate", "write a synthetic city as Parquet", _configure_generate, _write_events)
LEARN = Command("learn", "learn how people move, or which counts are usual (--profile)", _configure_learn, _learn)
