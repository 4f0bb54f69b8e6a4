"""``penstock status``: how a run is doing."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.pipeline import DONE, FAILED
from penstock.pipeline.cli.command import Command, print_json

if TYPE_CHECKING:
    from penstock.pipeline.monitoring.status import Status


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", metavar="DIR|URL", help="folder of the run, or where it serves its metrics")


def _execute(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from penstock.pipeline.monitoring.status import of_folder, of_server

    place = arguments.place
    found = of_server(place) if place.startswith(("http://", "https://")) else of_folder(Path(place))
    if arguments.json:
        print_json(asdict(found))
    else:
        print("\n".join(lines(found, time.time())))
    return DONE if found.well else FAILED


def lines(status: Status, now: float) -> list[str]:
    """A status in words; ``now`` in seconds since 1970.

    >>> from penstock.pipeline.monitoring.status import Status
    >>> found = Status(state="running", released=7, last_window_end=25_200.0, watermark=25_260.0, rows=1200, late=3)
    >>> print(*lines(found, now=25_290.5), sep="\\n")
    state      running
    released   7 windows, the latest until 1970-01-01T07:00:00Z (1m30s ago)
    watermark  1970-01-01T07:01:00Z (30s ago)
    rows       1,200 read, 3 late
    """
    said = [("state", status.state + (f" ({status.detail})" if status.detail else ""))]
    of = "" if status.planned is None else f" of {status.planned:,}"
    if status.released is not None:
        end = "" if status.last_window_end is None else f", the latest until {_when(status.last_window_end, now)}"
        said.append(("released", f"{status.released:,}{of} windows{end}"))
    elif status.state != "ended":
        said.append(("released", f"nothing yet{of and of + ' windows'}"))
    if status.due is not None:
        said.append(("due", f"{status.due:,} windows are final and not released yet"))
    if status.watermark is not None:
        said.append(("watermark", _when(status.watermark, now)))
    if status.budget_left is not None:
        said.append(("budget", f"ε {status.budget_left:.4g} left in this period"))
    if status.rows is not None:
        said.append(("rows", f"{status.rows:,} read, {status.late or 0:,} late"))
    if status.checkpoint is not None:
        said.append(("written", f"latest checkpoint at {_when(status.checkpoint, now)}"))
    return [f"{name:<10} {words}" for name, words in said]


def _when(instant: float, now: float) -> str:
    from penstock.pipeline.config.build import format_duration

    at = f"{datetime.fromtimestamp(instant, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return at if instant > now else f"{at} ({format_duration(int(now - instant) * 1000)} ago)"


STATUS = Command("status", "how a run is doing: watermark, windows, budget left, late rows", _configure, _execute)
