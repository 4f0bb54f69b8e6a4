"""A statement for data-protection officers: what a release guarantees, excludes and assumes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from penstock.mechanisms.core.concentrated import epsilon_at
from penstock.mechanisms.core.guarantee import DELTA, EPSILON
from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline import atomic
from penstock.pipeline.counting.bounding import over_time, unbounded
from penstock.pipeline.output.cells import CELLS
from penstock.pipeline.output.loss import caution
from penstock.pipeline.output.maps import OUTLINES
from penstock.pipeline.output.utility_summary import ONE
from penstock.pipeline.reporting import summary
from penstock.pipeline.reporting.accounts import treatment
from penstock.pipeline.reporting.data import Run
from penstock.pipeline.reporting.experiment import is_experiment
from penstock.pipeline.reporting.markup import Table, document, number, plural

STATEMENT = "data_protection.html"
STYLES = ("page.css", "statement.css")
#: Published files that a signature is about; exports and pages are made from them.
SIGNED = ("manifest.json", "releases.parquet", "traces.parquet", "accounts.parquet", CELLS, OUTLINES)


def write_statement(folder: str | Path) -> Path:
    """Write a run's printable data-protection statement to ``public/data_protection.html``.

    **Privacy**: made from ``public/`` alone, and as fit for publication as what is there.
    """
    folder = Path(folder)
    if is_experiment(folder):
        raise DataError(f"{folder}: an experiment publishes nothing; the statement is about a run")
    path = folder / "public" / STATEMENT
    atomic.write_text(path, statement(Run(folder, public_only=True)))
    return path


def statement(run: Run) -> str:
    """Render the statement from the published files as a page without scripts, ready to be printed and signed."""
    public, losses = run.public, run.losses
    steps = public["guarantee"]
    folder = run.folder / "public"
    digests = list[tuple[str, str]]()
    for path in (folder / name for name in SIGNED if (folder / name).is_file()):
        with path.open("rb") as file:
            digests.append((path.name, hashlib.file_digest(file, "sha256").hexdigest()))
    return document(
        "statement.html",
        f"{public['name']} · statement for the data-protection officer",
        STYLES,
        run=run,
        public=public,
        caution=caution(losses, ONE[run.counted]),
        released=summary.released(run),
        promised=[
            step
            | {
                "odds": "" if (epsilon := summary.pure_epsilon(step)) is None else summary.odds(epsilon),
                "settings": _settings(step["mechanism"], run.configuration),
            }
            for step in steps
            if summary.states_guarantee(step)
        ],
        without_promise=", ".join(step["mechanism"] for step in steps if not summary.states_guarantee(step)),
        lateness_reason=summary.lateness_reason(run),
        bounds=_bounds(run),
        lost=summary.loss_table(run),
        columns=summary.LOSS_COLUMNS,
        series=_series(public.get("ledger_series")),
        books=[
            (
                f"{treatment(figure.accountant).label(figure.name)} ({figure.accountant})",
                f"{number(figure.value, 3)} {figure.unit}",
                summary.describe_neighbours(figure, run.configuration),
                "the whole run" if figure.window is None else f"the worst window, {figure.window:,}",
                "final" if figure.final else "provisional",
            )
            for figure in run.figures
        ],
        facts={
            "name": public["name"],
            "mode": public["mode"],
            "penstock": public["versions"].get("penstock", "unknown"),
            "configuration (SHA-256)": public["configuration_digest"],
            **({"ledger head": public["ledger_head"]} if "ledger_head" in public else {}),
        },
        digests=Table(["Published file", "SHA-256"], digests, "The files that this page is about"),
        versions=", ".join(f"{name} {version}" for name, version in public["versions"].items() if name != "penstock"),
    )


def _settings(mechanism: str, configuration: dict[str, Any]) -> str:
    section: dict[str, Any] = next((step for step in configuration["mechanism"] if step["type"] == mechanism), {})
    named = ", ".join(f"{key} {value}" for key, value in section.items() if key != "type" and value is not None)
    return f" ({named})" if named else ""


def _bounds(run: Run) -> list[tuple[str, str]]:
    """Describe the contribution bounds, landmarks and budget period that the run uses."""
    configuration, sensitivity = run.configuration, run.public.get("sensitivity")
    bounding, rows = configuration.get("bounding") or {}, []
    period = configuration.get("budget_period")
    if sensitivity:
        maximum = f"In {plural(int(sensitivity['max_cells']), 'cell')} of a window."
        if warning := unbounded(bounding, int(sensitivity["max_cells"])):
            maximum += f" {warning}"
        rows.append(("A person counts at most (contribution bound)", maximum))
        rows.append(("Over a longer time (period bound)", over_time(bounding, period)))
    if period:
        rows.append(("The budget begins anew (budget period)", f"Every {period}."))
    rows.append(("Windows that matter to everybody (landmarks)", _landmarks(run)))
    return rows


def _landmarks(run: Run) -> str:
    section: dict[str, Any] = run.configuration.get("landmarks") or {}
    given = [
        f"{key} {', '.join(map(str, section[key]))}" for key in ("windows", "times", "recurring") if section.get(key)
    ]
    given += [key.replace("_", " ") for key in ("stay_points", "drawn") if section.get(key)]
    if not given:
        return "None."
    n_released = 0 if run.counts is None else int(run.counts.windows["landmark"].sum())
    count_note = f" Released so far: {n_released:,}." if n_released else ""
    hidden = " ".join(f"{sentence[:1].upper()}{sentence[1:]}." for sentence in run.public.get("hidden_landmarks", ()))
    return f"Public: {'; '.join(given)}.{count_note} {hidden}".strip()


# 2. Lost.


def _series(series: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the total privacy cost of all runs on the ledger, as ε and as odds, or None if no total is published."""
    if series is None:
        return None
    measure, ends = series["measure"], f"{series['from']} to {series['until']}"
    named = {"sum": f"By all releases, {ends}", "sum_of_30_days": "By those of the last 30 days of these"}
    amounts = {label: float(series[name]) for name, label in named.items()}
    if measure != EPSILON:
        amounts = {label: epsilon_at(measure, amount, DELTA) for label, amount in amounts.items()}
    return {
        "at_delta": "" if measure == EPSILON else f", at δ = {DELTA:g}: with that chance a loss may be larger",
        "rows": [summary.loss_row(label, maximum) for label, maximum in amounts.items()],
    }
