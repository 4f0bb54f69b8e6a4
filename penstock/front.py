"""Load a configuration, run it, and hand out what the run wrote as data frames."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.config import run as configuration
from penstock.pipeline.config.run import RunConfig


def load(config: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> RunConfig:
    r"""Load and check a configuration.

    Parameters
    ----------
    config
        Path of a YAML file; or its text, which has more than one line; or its sections as a mapping.
    overrides
        ``key.path=value`` texts, as after ``--set``, that replace or add values, in order.

    Raises
    ------
    ConfigError
        With every problem found, one line each: place, key, and what would be right.

    Examples
    --------
    >>> from penstock import load
    >>> load("configs/quickstart.yaml", ["mechanism[0].epsilon=0.5"]).mechanism[0].epsilon
    0.5
    >>> load({"name": "example", "seed": -1})
    Traceback (most recent call last):
    mechanisms.core.plugin.ConfigError: <mapping>:1: seed: -1 is not allowed; it must be a number at least 0 ...
    """
    if isinstance(config, Mapping):
        return configuration.loads(json.dumps(config), name="<mapping>", overrides=overrides)
    if isinstance(config, str) and "\n" in config:
        return configuration.loads(config, overrides=overrides)
    return configuration.load(config, overrides)


def run(
    config: RunConfig | str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    runner: str = "direct",
    beam_options: Sequence[str] = (),
    n_shards: int = 1,
    resume: bool = False,
) -> Result:
    """Run a configuration, from its input to its files.

    Parameters
    ----------
    config
        As `load` returns it, or anything that `load` takes.
    out
        Folder to write to; None: the configuration's ``output.path``. A simulation replaces an earlier run there.
    runner
        As after ``--runner``: ``direct``, ``local``, ``flink``, or another runner of Beam by its name.
    beam_options
        Options of Beam.
    n_shards
        Parts that users are split into while counting; never changes a result.
    resume
        Continue the run in the folder that was killed or interrupted.

    Raises
    ------
    PenstockError
        `ConfigError`, `DataError` and the rest of the family.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from penstock import load, run
    >>> config = load("configs/quickstart.yaml", ["source.n_users=50", "source.until=2024-01-01T06:00:00Z"])
    >>> with TemporaryDirectory() as folder:
    ...     result = run(config, folder)
    ...     print(result.exit_code, result.releases.shape, sorted(result.utility["metric"].unique()))
    0 (600, 15) ['mae', 'relative_mae', 'skill', 'skill_last', 'variance_explained']
    """
    from penstock.pipeline.run import run as run_configuration

    checked = config if isinstance(config, RunConfig) else load(config)
    done = run_configuration(checked, out, runner, beam_options, n_shards, resume)
    return Result(done.folder)


class Result:
    """The files of a run, as data frames; also of one that the command line ran.

    Each frame is read when it is first asked for. ``docs/library.md`` shows them.

    Parameters
    ----------
    folder
        Where the run wrote.

    Raises
    ------
    DataError
        By a property, where the run wrote no such file: truth and utility are of simulations, releases of runs on
        counts, traces of runs on traces.

    Examples
    --------
    >>> Result("runs/nowhere").releases
    Traceback (most recent call last):
    penstock.mechanisms.core.plugin.DataError: runs/nowhere/public/releases.parquet: this run wrote no such file
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The operator's manifest: row counts, digests of the input, timings, how the run ended."""
        found: dict[str, Any] = json.loads(self._file("operator/manifest.json").read_text(encoding="utf-8"))
        return found

    @property
    def exit_code(self) -> int:
        """0 done, 3 stopped because a budget would be exceeded, 4 interrupted (a stream that can be continued)."""
        return int(self.manifest["exit"]["code"])

    @cached_property
    def releases(self) -> pl.DataFrame:
        """What was published, a row for each window and active cell."""
        return self._frame("public/releases.parquet")

    @cached_property
    def traces(self) -> pl.DataFrame:
        """What was published of traces, a row for each point."""
        return self._frame("public/traces.parquet")

    @cached_property
    def accounts(self) -> pl.DataFrame:
        """What the releases cost: the accountants' rows, with ``side`` for who may see them, public or operator."""
        sides = [side for side in ("public", "operator") if (self.folder / side / "accounts.parquet").exists()]
        frames = [self._frame(f"{side}/accounts.parquet") for side in sides or ["public"]]
        return pl.concat([frame.insert_column(0, pl.lit(side).alias("side")) for side, frame in zip(sides, frames)])

    @cached_property
    def truth(self) -> pl.DataFrame:
        """True counts, before and after bounding; of a simulation only."""
        return self._frame("operator/truth.parquet")

    @cached_property
    def utility(self) -> pl.DataFrame:
        """Metrics of released against true counts; of a simulation only."""
        return self._frame("operator/utility.parquet")

    def _frame(self, name: str) -> pl.DataFrame:
        return pl.read_parquet(self._file(name))

    def _file(self, name: str) -> Path:
        path = self.folder / name
        if not path.exists():
            raise DataError(f"{path}: this run wrote no such file")
        return path
