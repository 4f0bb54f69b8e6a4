"""Read-only commands: ``list``, ``schema``, ``validate``, ``report``, ``export``, ``verify``, ``status``."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipeline import DONE, FAILED
from penstock.pipeline.cli.command import Command, add_configuration, add_folder, print_json, print_lines, show

if TYPE_CHECKING:
    from penstock.pipeline.monitoring.status import Status

KINDS = ("mechanisms", "accountants", "sources", "spaces", "windows", "metrics")


def entries(kind: str) -> list[dict[str, Any]]:
    """Return the name, summary and parameters of every plug-in of the given kind, and each mechanism's guarantee."""
    if kind == "metrics":
        from penstock.evaluation.utility import metric_called, metric_names

        known = [(name, metric_called(name)) for name in sorted(metric_names())]
        return [{"name": name, "promise": metric.help} for name, metric in known if metric is not None]
    from inspect import getdoc

    from penstock.mechanisms.core.plugin import parameters_of
    from penstock.pipeline.config.sections import UNIONS

    registry = next(registry for registry in UNIONS.values() if registry.group == f"penstock.{kind}")
    plugins = []
    for name in registry.names():
        plugin = registry.get(name)
        entry: dict[str, Any] = {"name": name, "promise": (getdoc(plugin) or "").split("\n")[0]}
        if kind == "mechanisms":
            words = plugin.examples()[0].guarantee.in_general
            entry |= {"guarantee": words.statement, "unit": words.unit, "theorem": words.theorem}
        entry["parameters"] = {p.key or n: p.doc for n, p in parameters_of(plugin).items()}
        plugins.append(entry)
    return plugins


def text(kind: str) -> str:
    """Return a plain-text list of all plug-ins of the given kind."""
    rows = entries(kind)
    width = max((len(row["name"]) for row in rows), default=0)
    return "\n".join([kind, *(f"  {row['name']:<{width}}  {row['promise']}" for row in rows)])


def markdown(kind: str) -> str:
    """Return a Markdown table of all plug-ins of the given kind, as shown in the README."""
    rows = entries(kind)
    columns = ["name", "promise"] + (["guarantee", "unit"] if kind == "mechanisms" else [])
    titles = {"name": kind[:-1], "promise": "what it does", "guarantee": "guarantee", "unit": "unit of privacy"}
    head = [" | ".join(titles[c] for c in columns), " | ".join("---" for _ in columns)]
    body = [" | ".join(f"`{row[c]}`" if c == "name" else row[c] for c in columns) for row in rows]
    return "\n".join(f"| {line} |" for line in head + body)


def _configure_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", choices=KINDS, help="only this kind")
    parser.add_argument("--markdown", action="store_true", help="print Markdown tables")


def _list(arguments: argparse.Namespace) -> int:
    kinds = (arguments.kind,) if arguments.kind else KINDS
    shown = markdown if arguments.markdown else text
    show(arguments, {kind: entries(kind) for kind in kinds}, ["\n\n".join(map(shown, kinds))])
    return DONE


def _schema(arguments: argparse.Namespace) -> int:
    from penstock.pipeline.config.schema import json_schema

    print_json(json_schema())
    return DONE


def _validate(arguments: argparse.Namespace) -> int:
    from penstock.mechanisms.core.noise_keys import NoiseKey
    from penstock.pipeline.cli.run import expectations
    from penstock.pipeline.config.build import input_paths
    from penstock.pipeline.config.canonical import resolved
    from penstock.pipeline.config.plan import outline
    from penstock.pipeline.config.run import load

    config = load(arguments.config, arguments.set)  # raises every error at once
    if input_paths(config.source):
        from penstock.pipeline.run import check_input

        check_input(outline(config, NoiseKey.from_seed(0)))  # no noise is drawn
    if arguments.json:
        print_json({"valid": True, "configuration": resolved(config)})
    else:
        print_lines("\n".join([f"{arguments.config}: a valid configuration", *expectations(config)]))
    return DONE


def _configure_report(parser: argparse.ArgumentParser) -> None:
    add_folder(parser)
    text = "data-protection: DIR/public/data_protection.html, from the published files alone; paper: figures.csv, "
    text += "figures.tex and citation.bib"
    parser.add_argument("--for", dest="reader", choices=("data-protection", "paper"), help=text)
    text = "draw what is in a GeoJSON, GeoParquet or GeoPackage file on the maps; a simplified copy is published"
    parser.add_argument("--outlines", metavar="FILE", help=text)


def _report(arguments: argparse.Namespace) -> int:
    from penstock.pipeline.monitoring import logs
    from penstock.pipeline.output.maps import write_outlines
    from penstock.pipeline.reporting.data_protection import write_statement
    from penstock.pipeline.reporting.page import write_report
    from penstock.pipeline.reporting.paper import write_for_paper

    folder = Path(arguments.folder)
    if arguments.outlines is not None and (caution := write_outlines(folder, arguments.outlines)):
        logs.caution(caution)
    made = {"data-protection": lambda: [write_statement(folder)], "paper": lambda: write_for_paper(folder)}
    pages = made.get(arguments.reader, lambda: write_report(folder))()
    show(arguments, {"report": str(pages[0]), "pages": list(map(str, pages))}, map(str, pages))
    return DONE


def _verify(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from penstock.pipeline.monitoring.verify import verify

    checks = verify(Path(arguments.folder))
    lines = (f"{'ok    ' if check.passed else 'WRONG '} {check.name}: {check.detail}" for check in checks)
    show(arguments, [asdict(check) for check in checks], lines)
    return DONE if all(check.passed for check in checks) else FAILED


def _configure_export(parser: argparse.ArgumentParser) -> None:
    add_folder(parser)
    parser.add_argument("--format", required=True, help="what maps and tables read: geojson, geoparquet or csv")
    parser.add_argument("--out", metavar="FILE", help="write here instead of beside the releases, in DIR/public")


def _export(arguments: argparse.Namespace) -> int:
    from penstock.pipeline.output.maps import export

    path = export(arguments.folder, arguments.format, arguments.out)
    show(arguments, {"file": str(path)}, [str(path)])
    return DONE


def _status(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from penstock.pipeline.monitoring.status import of_folder

    status = of_folder(Path(arguments.folder))
    show(arguments, asdict(status), status_lines(status, time.time()))
    return status.exit_code


def status_lines(status: Status, now: float) -> list[str]:
    """Describe the status of a run as of the time ``now``, in seconds since the Unix epoch."""
    lines = [("state", status.state + (f" ({status.detail})" if status.detail else ""))]
    of = "" if status.planned is None else f" of {status.planned:,}"
    if status.released is not None:
        end = "" if status.last_window_end is None else f", the latest until {_ago(status.last_window_end, now)}"
        lines.append(("released", f"{status.released:,}{of} windows{end}"))
    elif status.state != "ended":
        lines.append(("released", f"nothing yet{of and of + ' windows'}"))
    if status.due is not None:
        lines.append(("due", f"{status.due:,} windows are final and not released yet"))
    if status.watermark is not None:
        lines.append(("watermark", _ago(status.watermark, now)))
    if status.budget_left is not None:
        lines.append(("budget", f"ε {status.budget_left:.4g} left in this period"))
    if status.rows is not None:
        lines.append(("rows", f"{status.rows:,} read, {status.late or 0:,} late"))
    if status.checkpoint is not None:
        lines.append(("written", f"latest checkpoint at {_ago(status.checkpoint, now)}"))
    return [f"{name:<10} {words}" for name, words in lines]


def _ago(instant: float, now: float) -> str:
    from penstock.pipeline.config.kinds import format_duration

    at = f"{datetime.fromtimestamp(instant, UTC):%Y-%m-%dT%H:%M:%SZ}"
    return at if instant > now else f"{at} ({format_duration(int(now - instant) * 1000)} ago)"


LIST = Command("list", "list mechanisms, accountants, sources, spaces, windows and metrics", _configure_list, _list)
SCHEMA = Command("schema", "print the JSON Schema of a configuration, for editors", lambda parser: None, _schema)
VALIDATE = Command("validate", "check a configuration; every error at once, nothing runs", add_configuration, _validate)
REPORT = Command("report", "write the report of a run, an experiment or a choice", _configure_report, _report)
VERIFY = Command("verify", "check a run's folder: row equation, ledger, windows, digests", add_folder, _verify)
EXPORT = Command("export", "write releases with the geometry of their cells, for maps", _configure_export, _export)
STATUS = Command("status", "say how a run is doing: watermark, windows, budget left, late rows", add_folder, _status)
