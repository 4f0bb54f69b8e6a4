"""Functions to load and run a configuration from a notebook or a script."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from penstock.mechanisms.core.plugin import ConfigError, ParameterError

# NumPy, polars and the pipeline are imported where they are used: every command imports this module.
if TYPE_CHECKING:
    from penstock.pipeline.config.run import RunConfig
    from penstock.pipeline.reporting.result import Result


def load(config: str | Path | Mapping[str, Any], overrides: Iterable[str] = ()) -> RunConfig:
    r"""Load and validate a configuration.

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
    return _load(config, overrides)


def _load(config: str | Path | Mapping[str, Any], overrides: Iterable[str], out: str | Path | None = None) -> RunConfig:
    """Load a configuration. If it does not specify an output folder, use ``out``."""
    from penstock.pipeline.config.run import load, loads

    if isinstance(config, Mapping):
        return loads(json.dumps(config, default=_as_text), name="<mapping>", overrides=overrides, out=out)
    if isinstance(config, str) and "\n" in config:
        return loads(config, overrides=overrides, out=out)
    return load(config, overrides, out)


def _as_text(value: object) -> str:
    """Convert YAML values without a JSON equivalent to strings: times (UTC by default), dates, durations, paths."""
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if isinstance(value, date | PurePath):
        return str(value)
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.0f}s"
    raise ParameterError("config", type(value).__name__, "of what YAML holds: text, numbers, instants, lists, mappings")


def run(
    config: RunConfig | str | Path | Mapping[str, Any],
    out: str | Path | None = None,
    *,
    source: Any = None,
    runner: str = "direct",
    beam_options: Sequence[str] = (),
    n_shards: int = 1,
    resume: bool = False,
) -> Result:
    """Run a configuration from start to finish and return its results.

    Parameters
    ----------
    config
        As `load` returns it, or anything that `load` takes.
    out
        Folder to write to; None: the configuration's ``output.path``, which may be left out where this is given. A
        simulation replaces an earlier run there.
    source
        A data frame of events in place of the configuration's file: of pandas (2.2 or later), polars, Arrow, or
        whatever offers its columns by Arrow's C interface. It is written beside the folder, ``<out>.events.parquet``,
        so that the run can be verified and continued; the configuration's ``source`` keeps ``from``, ``until``,
        ``columns``, ``time_format`` and ``time_zone``. **Privacy**: that file holds the events as they are; it is the
        operator's.
    runner
        As after ``--runner``: ``direct``, ``local``, ``flink``, or another runner of Beam by its name.
    beam_options
        Options of Beam.
    n_shards
        Parts that users are split into while counting; never changes a result.
    resume
        Continue the run in the folder that was killed or interrupted. What cannot change a release may differ from
        how it began, such as a stream's ``speed``.

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
    0 (600, 16) ['bias', 'coverage', 'half_width', 'mae', 'relative_mae', 'skill', 'skill_last', 'variance_explained']
    """
    from penstock.pipeline.config.run import RunConfig
    from penstock.pipeline.run import run as run_configuration

    if hasattr(config, "__arrow_c_stream__"):
        expected = "a configuration; a data frame is its source: run(config, out, source=frame)"
        raise ParameterError("config", type(config).__name__, expected)
    overrides = [] if source is None else _store(source, out, config, resume)
    try:
        checked = config if isinstance(config, RunConfig) else _load(config, overrides, out)
    except ConfigError as error:
        if source is None:
            raise
        # Without the file that it was written to.
        written = re.compile(r"^--set source\.path=.*?\.events\.parquet: ")
        raise ConfigError(tuple(written.sub("source: the data frame: ", line) for line in error.problems)) from None
    return run_configuration(checked, out, runner, beam_options, n_shards, resume)


def _store(source: Any, out: str | Path | None, config: object, resume: bool) -> list[str]:
    """Write a data frame to a file next to the run's folder, and return overrides that make this file the source."""
    import polars as pl
    import pyarrow as pa

    from penstock.pipeline.atomic import replacing
    from penstock.pipeline.config.run import RunConfig
    from penstock.pipeline.output.checkpoint import is_deployment
    from penstock.pipeline.sources.reading.times import polars_timestamps

    if isinstance(config, RunConfig):
        raise ParameterError(
            "source", type(source).__name__, "given with a file or mapping, not a loaded configuration"
        )
    if out is None:
        raise ParameterError("out", None, "a folder to write to, where the source is a data frame")
    if not hasattr(source, "__arrow_c_stream__"):
        expected = "a data frame of pandas (2.2 or later), polars or Arrow; polars' lazy frames: collected"
        raise ParameterError("source", type(source).__name__, expected)
    try:
        # Arrow names the column that it refuses.
        frame = source if isinstance(source, pl.DataFrame) else pl.DataFrame(polars_timestamps(pa.table(source)))
        if pl.Object in frame.dtypes:
            raise TypeError("there are Python objects in it")
    except Exception as error:  # whatever the frame's own library raises for what Arrow cannot hold
        reason = " ".join(map(str, error.args))
        if hasattr(source, "geometry"):
            x, y = ("frame.geometry.to_crs(4326)." + axis for axis in "xy")
            reason += f"; points become columns by frame.assign(longitude={x}, latitude={y}).drop(columns='geometry')"
        expected = (
            f"one whose columns are numbers, text or times, each of one type, named once, and no geometry ({reason})"
        )
        raise ParameterError("source", type(source).__name__, expected) from error
    path = Path(f"{out}.events.parquet")
    if path.exists() and (resume or is_deployment(Path(out))):
        if not pl.read_parquet(path).equals(frame):
            raise ParameterError("source", type(source).__name__, f"the data frame that the run in {out} began with")
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as temporary:
            frame.write_parquet(temporary)
    return ["source.type=parquet", f"source.path={json.dumps(str(path))}"]
