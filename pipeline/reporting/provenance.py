"""The foot of the page: where every number comes from, and how to make it again."""

from __future__ import annotations

from typing import Any

import yaml

from pipeline.reporting.markup import Cell, Html, element, join, table
from pipeline.reporting.run_data import RunData
from pipeline.reporting.treatment import treatment
from pipeline.reporting.verdict import users_sentence, with_values
from pipeline.reporting.words import number, phrase

#: Order of the sections in a configuration as people write it.
SECTIONS = ("name", "mode", "seed", "noise_key", "source", "space", "sensors", "windows", "bounding", "landmarks")
FATES = ("used", "late", "out_of_area", "out_of_time", "rejected")
MOST_REJECTS = 20


def figures_table(run: RunData) -> Html | None:
    """All figures of the books."""
    if not run.figures:
        return None
    rows: list[list[Cell]] = [
        [
            figure.accountant,
            treatment(figure.accountant).label(figure.name),
            (number(figure.value), figure.value),
            figure.unit,
            "whole run" if figure.window is None else f"window {figure.window:,}",
            "" if figure.high is None else f"{number(figure.low)} to {number(figure.high)}",
            f"{figure.n_subjects:,}",
            with_values(figure.adjacency, run.configuration),
            "final" if figure.final else "provisional",
        ]
        for figure in run.figures
    ]
    columns = ["Accountant", "Figure", "Value", "Unit", "Where", "Interval", "Subjects", "Compared", "Status"]
    return table(columns, rows, "All figures of the books: of the whole run, or the worst over windows and subjects")


def row_equation(run: RunData) -> Html | None:
    """What became of every input row."""
    manifest = run.files.operator
    if manifest is None:
        return None
    rows = manifest["rows"]
    terms = " + ".join(f"{rows[fate]:,} {phrase(fate)}" for fate in FATES)
    parts: list[Html | None] = [
        element("p", f"{rows['rows']:,} rows = {terms}", class_="equation"),
        element("p", f"Of the used rows {rows['duplicates']:,} repeat a person in the same cell and window."),
    ]
    users = users_sentence(manifest)
    if users:
        parts.append(element("p", users))
    return join(*parts, _rejects(run, rows))


def _rejects(run: RunData, rows: dict[str, Any]) -> Html | None:
    if not rows["rejected"]:
        return None
    reasons = [[reason, (f"{n:,}", n)] for reason, n in rows["rejected_by_reason"].items()]
    examples = [
        [
            str(r.get("file", "")),
            str(r.get("line", r.get("offset", ""))),
            str(r.get("reason", "")),
            str(r.get("raw", "")),
        ]
        for r in run.files.rejects(MOST_REJECTS)
    ]
    return join(
        table(["Reason", "Rows"], reasons, "Rejected rows by reason"),
        table(["File", "Line", "Reason", "Row"], examples, f"The first {len(examples)} rejected rows"),
    )


def provenance(run: RunData) -> Html:
    """Configuration, versions, seed and digests."""
    manifest: dict[str, Any] = run.files.operator or run.files.public
    noise = manifest.get("noise", {})
    facts = {"configuration digest": manifest["configuration_digest"], "mode": run.files.public["mode"]}
    facts |= {("seed" if key == "seed" else f"noise key {key}"): str(value) for key, value in noise.items()}
    facts |= {f"seconds, {phase}": number(seconds) for phase, seconds in manifest.get("seconds", {}).items()}
    if "exit" in manifest:
        facts["exit"] = f"{manifest['exit']['code']} ({manifest['exit']['reason']})"
    text = configuration_yaml(run)
    sections = [
        element(
            "div",
            element("h3", "Configuration"),
            element("p", "Save it as a file and run it again: ", element("code", "penstock run FILE"), "."),
            listing(text, "Configuration as YAML"),
        ),
        element("div", element("h3", "Run"), definitions(facts)),
        element("div", element("h3", "Versions"), definitions(manifest["versions"])),
    ]
    inputs = manifest.get("inputs")
    if inputs:
        rows: list[list[Cell]] = [[name, digest] for name, digest in inputs.items()]
        summary = element("summary", f"Input digests ({len(inputs):,})")
        sections.append(element("details", summary, table(["Input", "SHA-256"], rows, "Digests of the inputs")))
    return join(*sections)


def configuration_yaml(run: RunData) -> str:
    """The configuration as a file that makes the same run again; a simulation's seed is part of it."""
    configuration = dict(run.configuration)
    seed = (run.files.operator or {}).get("noise", {}).get("seed")
    if seed is not None:
        configuration["seed"] = seed
    note = "" if run.files.public["mode"] == "simulation" else "# add: noise_key: FILE\n"
    return note + as_yaml(configuration)


def as_yaml(configuration: dict[str, Any]) -> str:
    """A run's configuration with its sections in the order in which people write them."""
    ordered = {key: configuration[key] for key in SECTIONS if key in configuration} | configuration
    written: str = yaml.safe_dump(type_first(ordered), sort_keys=False, allow_unicode=True, width=110)
    return written


def type_first(value: Any) -> Any:
    """The same with ``type`` as the first key of every section."""
    if isinstance(value, list):
        return [type_first(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    first = {"type": value["type"]} if "type" in value else {}
    return first | {key: type_first(entry) for key, entry in value.items()}


def listing(text: str, name: str) -> Html:
    """Text to copy."""
    return element("div", element("pre", text, tabindex="0", role="region", aria_label=name), class_="copyable")


def definitions(facts: dict[str, str]) -> Html:
    """Names and values."""
    pairs = [element("div", element("dt", name), element("dd", str(value))) for name, value in facts.items()]
    return element("dl", *pairs, class_="facts")
