"""``penstock run`` runs a configuration, shows progress, and prints a summary."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipeline import FAILED, INTERRUPTED, STOPPED
from penstock.pipeline.cli.command import Command, add_configuration, add_quiet, print_lines, show

if TYPE_CHECKING:
    from penstock.pipeline.config.run import RunConfig
    from penstock.pipeline.monitoring.metrics import RunMetrics
    from penstock.pipeline.reporting.result import Result

#: Files that the summary of a run names, in its order.
TO_OPEN = (
    *("report.html", "operator/report.html", "public/report.html"),
    *(f"public/{name}" for name in ("releases.parquet", "traces.parquet", "accounts.parquet", "manifest.json")),
    *(f"operator/{name}" for name in ("manifest.json", "truth.parquet", "utility.parquet")),
)

#: What `validate` says of a deployment that releases nothing if no row can be used.
EMPTY = (
    "a run in which no row can be used ends with an error and releases nothing, which tells those who wait; "
    "allow_empty: true releases empty counts"
)


def _configure(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    parser.add_argument("--out", metavar="DIR", help="write here instead of output.path, which may be left out")
    text = "direct (default), local (a plain loop without Beam), prism, flink, dataflow, PortableRunner"
    parser.add_argument("--runner", default="direct", help=text)
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="split users while counting (same result)")
    parser.add_argument("--resume", action="store_true", help="continue a run that was killed or interrupted")
    text = "send a stream to an engine that was never shown to hold watermarks: windows may lack rows"
    parser.add_argument("--unverified-engine", action="store_true", help=text)
    add_quiet(parser)
    parser.add_argument("--watch", action="store_true", help="serve the report on this machine during the run")
    parser.add_argument("--log", choices=("json", "text"), help="log events on standard error, in this form")
    parser.add_argument("--metrics-port", type=int, metavar="PORT", help="serve /metrics (Prometheus) and /healthz")
    text = "where; beyond this machine public measures only"
    parser.add_argument("--metrics-address", default="127.0.0.1", metavar="IP", help=text)
    parser.epilog = "Words after -- are passed on to Beam."


def _execute(arguments: argparse.Namespace) -> int:
    from penstock.pipeline.config.run import load
    from penstock.pipeline.monitoring.logs import logging_to

    config = load(arguments.config, arguments.set, arguments.out)
    quiet = arguments.quiet or arguments.json or arguments.log
    with ExitStack() as services:
        services.enter_context(logging_to(style=arguments.log, deployment=config.mode == "deployment"))
        from penstock.pipeline.run import run

        if arguments.metrics_port is not None:
            from penstock.pipeline.monitoring.server import serve_metrics

            services.enter_context(serve_metrics(arguments.metrics_port, arguments.metrics_address))
        if arguments.watch:
            from penstock.pipeline.reporting.live import watch

            services.enter_context(watch(Path(arguments.out or config.output.path)))
        if not quiet and (lines := expectations(config)):
            print_lines("\n".join(lines))
        if not quiet and sys.stderr.isatty():
            services.enter_context(show_progress())
        options = (arguments.runner, arguments.beam_options, arguments.shards, arguments.resume)
        result = run(config, arguments.out, *options, unverified_engine=arguments.unverified_engine)
    if arguments.quiet and not (arguments.json or arguments.log) and result.exit_code in (FAILED, STOPPED, INTERRUPTED):
        print(f"penstock: {result.folder}: {result.manifest['exit']['reason']}", file=sys.stderr)
    figures = {"exit_code": result.exit_code, "folder": str(result.folder), **result.manifest}
    show(arguments, figures, summary(result).splitlines())
    return result.exit_code


@contextmanager
def show_progress() -> Iterator[None]:
    """Show a run's progress on standard error until the block exits."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from penstock.pipeline.monitoring.metrics import RunMetrics, listening

    begun, registry = time.monotonic(), RunMetrics()
    shown = partial(Live, console=Console(stderr=True), transient=True, refresh_per_second=8)
    with listening(registry), shown(get_renderable=lambda: Text(progress_line(registry, time.monotonic() - begun))):
        yield


def progress_line(registry: RunMetrics, seconds: float) -> str:
    """Describe a run's progress in one line."""
    from penstock.pipeline.monitoring.metrics import BUDGET_LEFT, LATEST_EVENT, POINTS, ROWS, WINDOWS

    events, windows = registry.total(ROWS), registry.total(WINDOWS)
    points = registry.total(POINTS)
    released = f"{points:,.0f} points released" if points else f"{windows:,.0f} windows released"
    parts = [f"{events:,.0f} events read", released, f"{events / max(seconds, 1e-9):,.0f} events/s"]
    if (latest := registry.value(LATEST_EVENT)) is not None:
        parts.append(f"at {datetime.fromtimestamp(latest, UTC):%Y-%m-%d %H:%M}")
    if (left := registry.value(BUDGET_LEFT)) is not None:
        parts.append(f"ε {left:.3g} left")
    return " · ".join(parts)


def expectations(config: RunConfig) -> list[str]:
    """Describe a run's expected cost and error before it starts, using public information only."""
    from penstock.pipeline.counting.bounding import unbounded
    from penstock.pipeline.output.loss import caution, describe_losses
    from penstock.pipeline.output.rehearsal import (
        budget_unit,
        describe_expected_noise,
        expected_losses,
        expected_noise,
        noise_warning,
        rehearse,
    )
    from penstock.pipeline.sources.base import is_recorded

    rehearsal = rehearse(config)
    losses, noise = rehearsal and expected_losses(rehearsal), rehearsal and expected_noise(rehearsal)
    promised = rehearsal if any(step.guarantee.exists for step in config.mechanism) else None
    choice = rehearsal and rehearsal.plan.noise_choice
    one = "person" if config.source.has_people else "trip"
    rows = "rows of this source belong to no person: what is counted and protected is a row or a trip"
    is_silent = config.mode == "deployment" and is_recorded(config.source) and not config.allow_empty
    lines = [
        ("CAUTION", noise and noise_warning(config, noise[0])),
        ("CAUTION", None if config.source.has_people else rows),
        ("noise", choice and choice.words),
        ("loss", losses and rehearsal and describe_losses(losses, one, budget_unit(rehearsal))),
        ("CAUTION", caution(losses, one)),
        ("expect", noise and describe_expected_noise(config, *noise)),
        ("CAUTION", promised and unbounded(vars(config.bounding), promised.plan.grid.n_cells)),
        ("empty", EMPTY if is_silent else None),
    ]
    return [f"{name:<9} {words}" for name, words in lines if words]


def summary(result: Result) -> str:
    """Summarise a run in a few lines: the rows read, windows released, users, utility, and files to open."""
    from penstock.evaluation.utility import METRICS
    from penstock.pipeline.output.loss import describe_losses
    from penstock.pipeline.output.manifest import describe_users
    from penstock.pipeline.output.utility_summary import ONE, counted, describe_utility, is_worse_than_zeros

    manifest = result.manifest
    rows = manifest["rows"]
    lines = [
        f"read      {rows['rows']:,} rows: {rows['used']:,} used ({rows['duplicates']:,} duplicates), "
        f"{rows['late']:,} late, {rows['out_of_area']:,} out of area, {rows['out_of_time']:,} out of time, "
        f"{rows['rejected']:,} rejected",
        _describe_release(manifest),
    ]
    if rows.get("clamped"):
        lines.append(f"          {rows['clamped']:,} of them outside the area, moved to its edge")
    if manifest.get("users"):
        lines.append(f"people    {describe_users(manifest['users'])}")
        if not manifest["distinct_people"]:
            lines.append("CAUTION   rows of this source belong to no person: the counts are not of distinct people")
    if loss := manifest.get("loss"):
        lines.append(f"loss      {describe_losses(loss, ONE[counted(manifest)])}")
    if accuracy := manifest.get("utility_summary"):
        verdict = describe_utility(accuracy, counted(manifest))
        if is_worse_than_zeros(accuracy):
            lines.insert(0, f"CAUTION   {verdict}")
        else:
            lines.append(f"utility   {verdict}")
    measured = manifest.get("utility", {})
    for name in (name for name in METRICS if name in measured):
        source = f" (as in {METRICS[name].source})" if METRICS[name].source else ""
        lines.append(f"utility   {name} {measured[name]:.4g}{source}")
    if result.exit_code in (FAILED, STOPPED, INTERRUPTED):
        lines.append(f"STOPPED   {manifest['exit']['reason']}")
    lines.append(f"took      {sum(manifest['seconds'].values()):.1f} s")
    lines.append("open")
    lines += [f"  {result.folder / name}" for name in TO_OPEN if (result.folder / name).exists()]
    lines += [f"CAUTION   {words}" for words in manifest.get("doubts", ())]
    if unused := manifest.get("unused"):
        lines.append(f"WARNING   half of the rows or more were not used: {unused}")
    return "\n".join(lines)


def _describe_release(manifest: dict[str, Any]) -> str:
    counted = dict(manifest.get("windows") or manifest["points"])
    planned, kind = counted.pop("planned", None), "windows" if "windows" in manifest else "points"
    n_released = counted.pop("released", None) or sum(counted.values())
    actions = ", ".join(f"{n:,} {action}" for action, n in counted.items())
    of = f" of {planned:,}" if planned is not None and n_released < planned else ""
    return f"released  {n_released:,}{of} {kind}" + (f": {actions}" if actions else "")


def _configure_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="DIR", help="write here instead of runs/quickstart")
    add_quiet(parser)


def _demo(arguments: argparse.Namespace) -> int:
    """Run the quick start shipped with the package, and print the path of its report."""
    from importlib.resources import as_file, files

    with as_file(files("penstock") / "configs" / "quickstart.yaml") as path:
        parser = argparse.ArgumentParser()
        _configure(parser)
        code = _execute(parser.parse_args([str(path), "--runner", "local"], arguments))
    if not arguments.json:
        print(f"report    {Path(arguments.out or 'runs/quickstart') / 'report.html'}")
    return code


DEMO = Command("demo", "run the quick start: a week of a made-up city, released hour by hour", _configure_demo, _demo)
RUN = Command("run", "run a configuration: read, count, release, account, write", _configure, _execute)
