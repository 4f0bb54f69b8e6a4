"""A run's summary in plain language: the verdict, warnings, row counts and provenance."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import polars as pl
import yaml

from penstock.evaluation.utility import DEFAULT
from penstock.mechanisms.core.contract import ACTIONS
from penstock.pipeline.counting.bounding import unbounded
from penstock.pipeline.counting.input_check import mostly_lost
from penstock.pipeline.output.loss import VERY_WEAK, caution, describe_losses, even_odds, explain_day_excess, short_loss
from penstock.pipeline.output.manifest import describe_users
from penstock.pipeline.output.utility_summary import ONE, describe_utility, is_better, is_worse_than_zeros
from penstock.pipeline.reporting.accounts import (
    AccountFigure,
    figure_text,
    is_share,
    metric_words,
    smallest_is_worst,
    treatment,
)
from penstock.pipeline.reporting.data import Run, citation, identity
from penstock.pipeline.reporting.markup import Table, moment, number, percent, phrase, plural

#: Up to this many headline numbers are shown in one row, without headings.
ONE_ROW = 4
#: A period's budget is nearly spent if less than this fraction of it is left.
NEARLY = 0.1
#: Fraction of all rows from which rejected or late rows cause a warning.
MANY_ROWS = 0.01
MAX_REJECTS = 20
#: Fraction of all visits from which visits missing from the release cause a warning.
MANY_VISITS = 0.05

#: Customary order of the sections in a configuration.
SECTIONS = ("name", "mode", "seed", "noise_key", "source", "space", "sensors", "windows", "bounding", "landmarks")
OUTCOMES = ("used", "late", "out_of_area", "out_of_time", "rejected")

#: Levels of a warning, most serious first.
Level = Literal["danger", "caution", "note"]
#: The first words of a paragraph, which are emphasised, and the remaining ones.
Paragraph = tuple[str, str]


class Headline(NamedTuple):
    """A headline number, with a note that states the adversary or the scope."""

    label: str
    value: str
    unit: str
    note: str


def verdict(run: Run) -> str | None:
    """Describe accuracy and risk in one non-technical sentence. Return None if no counts have been released."""
    if run.counts is None:
        return None
    verdict_line, noise = (run.operator or {}).get("utility_summary"), _noise(run)
    if verdict_line and verdict_line["error"]:
        lost_in_noise = "are lost in the noise: they " if is_worse_than_zeros(verdict_line) else ""
        where = f"where {number(verdict_line['mean_count'], 2)} are there"
        use = f"The counts {lost_in_noise}are off by about {_people(verdict_line['error'], run)} {where}"
    elif noise:
        bounds = run.configuration.get("bounding") or {}
        is_bounded = any(bounds.get(key) for key in ("max_cells", "max_per_period"))
        within = f"Within the bounds on a {ONE[run.counted]}'s visits, " if is_bounded else ""
        error = f"off by at most {_people(noise[0], run)} where {number(noise[1], 2)} are shown"
        use = f"{within}95 of 100 counts are {error}"
    else:
        use = "The counts are shown as they are"
    if not any(map(states_guarantee, run.public["guarantee"])):
        return f"{use}, and nothing protects the {run.counted} in them."
    if run.losses is None or math.isinf(run.losses["release"]):
        return f"{use}."
    odds_of_day = even_odds(run.losses["day"])
    certainty = (
        "become all but certain" if odds_of_day.startswith("over") else f"become {odds_of_day} sure, and no surer"
    )
    who = f"whoever sees them, and thought it as likely as not that a {ONE[run.counted]} was there on a day"
    return f"{use}; {who}, can {certainty}."


def _people(value: float, run: Run) -> str:
    shown = number(value, 2)
    return f"{shown} {ONE[run.counted] if shown == '1' else run.counted}"


def details(run: Run) -> list[Paragraph]:
    """Describe the accuracy, the guarantee and the privacy cost to one person. Works with any accountant."""
    summary, noise = (run.operator or {}).get("utility_summary"), _noise(run)
    verdict_line = describe_utility(summary, run.counted) if summary else noise and _describe_noise(*noise, run.counted)
    unbounded_loss = [(describe_losses(run.losses), "")] if run.losses and math.isinf(run.losses["release"]) else []
    return [*([(verdict_line, "")] if verdict_line else []), *_guarantees(run), *unbounded_loss]


#: Headings of the rows of `loss_row`.
LOSS_COLUMNS = ["Lost", "Loss (ε in nats)", "Odds change at most by", "Even odds (50 %) become at most"]


def loss_row(label: str, epsilon: float) -> tuple[str, ...]:
    """Return a row of a privacy-loss table: label, ε, and ε as odds."""
    factor = f"× {short_loss(math.exp(epsilon))}" if epsilon <= VERY_WEAK else "any factor: next to no protection"
    return label, short_loss(epsilon), factor, even_odds(epsilon)


def loss_table(run: Run) -> Table | None:
    """Return a table of one person's largest losses by release, day and run, or None if they are unbounded."""
    losses = run.losses
    if not losses or math.isinf(losses["release"]):
        return None
    labels = {"release": "By one release" if run.traces is None else "By one point", "day": "By a day"}
    labels["run"] = "By the whole run"
    at_delta = f", at δ = {losses['delta']:g}: with that chance a loss may be larger" if "delta" in losses else ""
    caption = f"The most that one {ONE[run.counted]} can lose (sums of the published charges{at_delta})"
    return Table(LOSS_COLUMNS, [loss_row(label, losses[name]) for name, label in labels.items()], caption)


def headlines(run: Run) -> list[tuple[str | None, list[Headline]]]:
    """Return the headline numbers of privacy and utility, under headings if they do not fit in one row."""
    costs, use = _costs(run), _utility(run)
    return [("Cost and risk", costs), ("Use", use)] if len(costs + use) > ONE_ROW else [(None, costs + use)]


def released(run: Run) -> str:
    """Describe what was released: the number of counts or points, the time range and the actions taken."""
    counts, traces, planned = run.counts, run.traces, run.public.get("windows")
    if traces is not None:
        done = ", ".join(f"{n:,} {action}" for action, n in traces["action"].value_counts(sort=True).rows())
        return (
            f"Traces of {traces['pseudonym'].n_unique():,} people were released point by point, under pseudonyms: "
            f"{plural(len(traces), 'point')}, {done}."
        )
    if counts is None:
        return "Nothing has been released yet."
    done = ", ".join(f"{n:,} {action}" for action, n in counts.outcomes())
    begin, end = (moment(int(at), run.time_zone) for at in (counts.windows["start"][0], counts.windows["end"][-1]))
    shown = "" if counts.n_all_windows == len(counts.windows) else f" (the latest {len(counts.windows):,} are shown)"
    of_planned = f" of {planned:,}" if planned else ""
    return (
        f"Counts of distinct {run.counted} in {plural(counts.n_all_cells, 'cell')} were released for "
        f"{counts.n_all_windows:,}{of_planned} windows{shown}, from {begin} to {end} ({run.time_zone}): {done}."
    )


def _noise(run: Run) -> tuple[float, float] | None:
    """Return the mean half-width of the noise's 95 % interval and the mean count, or None if there is no noise."""
    counts = run.counts
    if counts is None or not (known := counts.margin > 0).any():
        return None
    return float(counts.margin[known].mean()), float(np.nanmean(counts.released))


def _describe_noise(margin: float, mean: float, counted: str) -> str:
    within = f"95 % of the error of a count is within ± {number(margin, 3)} {counted}"
    return f"{within}; the mean released count is {number(mean, 3)}."


def states_guarantee(guarantee: dict[str, Any]) -> bool:
    """Return whether a mechanism's entry in the public manifest states a privacy guarantee."""
    return not guarantee["guarantee"].startswith("none")


def _guarantees(run: Run) -> list[Paragraph]:
    """Return a paragraph for each step that has a guarantee, and one that lists the steps without a guarantee."""
    steps, paragraphs = run.public["guarantee"], list[Paragraph]()
    for step in filter(states_guarantee, steps):
        epsilon = pure_epsilon(step)
        bounded = "" if epsilon is None else f" {odds(epsilon)}"
        text = (
            f"Protected is {step['unit']}.{bounded} Neighbours: {step['neighbours']}. "
            f"Mechanism: {step['mechanism']}. Proof: {step['theorem']}."
        )
        paragraphs.append((f"{step['guarantee']}.", text))
    others = ", ".join(step["mechanism"] for step in steps if not states_guarantee(step))
    if paragraphs and others:
        paragraphs.append(("", f"Further steps, without a promise of their own: {others}."))
    if not paragraphs:
        text = (
            f"The mechanism {others} promises nothing{lateness_reason(run)}: someone who sees the releases may learn "
            "that a particular person was in a particular place."
        )
        paragraphs.append(("No guarantee.", text))
    return paragraphs


def lateness_reason(run: Run) -> str:
    """Explain why the run's lateness rule voids its guarantee, or return an empty string if the guarantee holds."""
    lateness = str(run.public.get("lateness", ""))
    return f" (lateness is {lateness})" if lateness.startswith("shared") else ""


def pure_epsilon(guarantee: dict[str, Any]) -> float | None:
    """Return ε, in nats, if the guarantee is one of pure differential privacy, or None otherwise."""
    is_pure = guarantee.get("measure") == "epsilon" and "indistinguishability" not in guarantee["guarantee"]
    return float(guarantee["amount"]) if is_pure else None


def describe_neighbours(figure: AccountFigure, configuration: dict[str, Any]) -> str:
    """Describe a metric's neighbour relation and explain any difference from that of the headline losses."""
    values = {key: value for section in configuration["mechanism"] for key, value in section.items()}

    def configured(name: re.Match[str]) -> str:
        """Return the value of a parameter such as `radius`, writing 50 rather than 50.0."""
        value = values.get(name[1], name[1])
        return number(value, 12) if isinstance(value, float) else str(value)

    words = re.sub(r"`(\w+)`", configured, figure.adjacency)
    return "; ".join(filter(None, (words, treatment(figure.accountant).reason(figure.name))))


def odds(epsilon: float) -> str:
    """Explain what ε means for an adversary who sees all releases, and where this explanation does not apply."""
    if epsilon > VERY_WEAK:
        return "So large an ε promises next to nothing."
    return (
        "For someone who sees everything that was released and knows all other data, the odds that this was in the "
        f"data change by a factor of at most {short_loss(math.exp(epsilon))}. Someone who knows instead how visits "
        "depend on one another can learn more."
    )


def _costs(run: Run) -> list[Headline]:
    by_accountant: dict[str, dict[str, AccountFigure]] = {}
    for figure in run.figures:
        by_accountant.setdefault(figure.accountant, {})[figure.name] = figure
    parts, losses = list[Headline](), run.losses
    if losses is not None and not math.isinf(losses["release"]):
        at_delta = f" at δ = {losses['delta']:g}" if "delta" in losses else ""
        odds = f"at most {even_odds(losses['day'])}".replace("at most over", "over")
        note = (
            f"Even odds that someone was there become {odds}, for who sees all releases "
            f"and knows everything else. By the whole run: {short_loss(losses['run'])} ({even_odds(losses['run'])})."
            f"{explain_day_excess(losses, ONE[run.counted])}"
        )
        day = f"ε = {short_loss(losses['day'])}"
        parts.append(Headline("What one person loses by a day", day, f"nats{at_delta}", note))
    for accountant, named in by_accountant.items():
        wanted, baseline = treatment(accountant).headline, treatment(accountant).baseline
        if isinstance(baseline, str):
            baseline = named[baseline].value if baseline in named else None
        for candidates in [[name] for name in list(named)[:2]] if wanted is None else wanted:
            present = [named[name] for name in candidates if name in named]
            parts += [_headline(figure, run, baseline) for figure in present[:1]]
    return parts


def _headline(figure: AccountFigure, run: Run, baseline: float | None) -> Headline:
    worst = "" if figure.window is None else ", worst"
    # Adversaries of `KNOWN` are those of counts; the rows of traces name their neighbours.
    adversary = "" if run.traces is not None else treatment(figure.accountant).adversary
    against = f"Against {adversary}." if adversary else f"Compared: {describe_neighbours(figure, run.configuration)}."
    value = number(figure.value)
    if figure.high is not None and figure.high > figure.value:
        is_estimate = figure.low is not None and figure.low < figure.value
        value += f" ({number(figure.low)} to {number(figure.high)})" if is_estimate else f" to {number(figure.high)}"
    label = treatment(figure.accountant).label(figure.name) + worst
    provisional = "" if figure.final else " Provisional: releases after a window can still raise its figure."
    suffix = f" The worst of {figure.n_subjects:,}." if figure.n_subjects > 1 else ""
    without = "" if baseline is None else f" Without any release: {number(baseline)}."
    return Headline(label[0].upper() + label[1:], value, figure.unit, against + without + suffix + provisional)


def _utility(run: Run) -> list[Headline]:
    parts = []
    measured = (run.operator or {}).get("utility") or {}
    # What everybody understands comes first, in whatever order it was asked for.
    ordered = {name: measured[name] for name in DEFAULT if name in measured} | measured
    for name, value in ordered.items():
        title, unit, note = metric_words(name, run.counted)
        if run.traces is not None:
            unit, note = "metres", "Distance of released and true points, mean over all points."
        if is_share(name):
            note = re.sub(r"\b1(?= is best|\))", "100 %", note)
        note = note or "Released against the truth, over the whole run."
        parts.append(Headline(title, figure_text(value, name), unit, note))
    return parts


class Notice(NamedTuple):
    """A notice with a level, a short title, and a sentence or two."""

    level: Level
    title: str
    text: str


def warnings(run: Run) -> list[Notice]:
    """Return all warnings that apply to the run, most serious first."""
    kinds = (_guarantee, _accuracy_notices, _bound, _accounts, _budget, _rows, _display_notices)
    return by_level(notice for kind in kinds for notice in kind(run))


def by_level(notices: Iterable[Notice]) -> list[Notice]:
    """Sort notices, most serious first."""
    return sorted(notices, key=lambda notice: get_args(Level).index(notice.level))


def _guarantee(run: Run) -> Iterator[Notice]:
    public = run.public
    if run.is_deployment and not run.public_only:
        text = (
            "This page counts rejected, late and used rows and people, and names inputs and keys. What may be "
            "published is in public/, with a page of its own."
        )
        yield Notice("danger", "not for publication", text)
    if not any(map(states_guarantee, public["guarantee"])):
        yield Notice("danger", "no guarantee", "What was released carries no promise of privacy. Do not publish it.")
    if public["mode"] == "simulation":
        yield Notice("caution", "unfit for publication", public["notice"])
    if engine := public.get("engine"):
        yield Notice("danger", "unverified engine", f"The stream ran on {engine}.")
    if not public.get("distinct_people", True):
        text = (
            "The source knows rows or trips, not people: a person in two counts twice, and each is protected by itself."
        )
        yield Notice("caution", "rows, not people", text)
    if public.get("total"):
        text = (
            "Another ledger over the same events was acknowledged: what one person loses by all runs together is "
            "unknown, and no figure here counts it."
        )
        yield Notice("caution", "the total is unknown", text)
    if words := caution(run.losses, ONE[run.counted]):
        yield Notice("danger" if (run.losses or {})["day"] > VERY_WEAK else "caution", "little is protected", words)
    n_cells = (public.get("sensitivity") or {}).get("max_cells", 1)
    warning = unbounded(run.configuration.get("bounding") or {}, n_cells)
    if warning and any(map(states_guarantee, public["guarantee"])):
        yield Notice("caution", "contributions are not bounded", warning)
    ended = (run.operator or {}).get("exit", {})
    if not run.is_over:
        yield Notice("note", "the run goes on", "Everything here is provisional until it has ended.")
    elif ended.get("code") and not ended.get("complete"):  # of a complete one rows are missing, which is said with them
        text = f"{ended['reason']}. What follows covers the windows released before."
        yield Notice("danger", "the run stopped early", text)


def _accuracy_notices(run: Run) -> Iterator[Notice]:
    summary, noise = (run.operator or {}).get("utility_summary"), _noise(run)
    if not summary:
        if run.counts is not None and run.counts.truth is None and noise and noise[0] > noise[1]:
            noise_description = _describe_noise(*noise, run.counted)
            text = f"{noise_description} Single counts are mostly noise; sums over many cells or windows may not be."
            yield Notice("caution", "the noise is larger than the counts", text)
        return
    if not summary["error"] or is_better(summary):
        return
    # A smaller bound is no advice to whom the bound takes many visits already.
    cures = "larger cells or longer windows" if any(_bound(run)) else "larger cells, longer windows or a smaller bound"
    text = f"{describe_utility(summary, run.counted)} More budget, {cures} make it nearer."
    if summary["error"] >= summary["error_of_zeros"]:
        yield Notice("danger", "worse than publishing nothing", text)
    else:
        other = "last release" if summary["error"] >= summary["error_of_last"] else "prior"
        yield Notice("caution", f"no better than the {other}", text)


def _left_out(run: Run) -> str:
    """Describe how many visits are missing from the release, or return an empty string if none are."""
    n_visits, n_kept = run.visits or (0, 0)
    n_left = n_visits - n_kept
    if n_left <= 0:
        return ""
    share = f"{percent(n_left, n_visits)}; a visit is a {ONE[run.counted]} in a cell and window"
    return (
        f"{n_left:,} of {n_visits:,} visits ({share}) are left out before the noise, "
        "by the bound on contributions or by a step of the mechanism"
    )


def _bound(run: Run) -> Iterator[Notice]:
    n_visits, n_kept = run.visits or (0, 0)
    if n_visits - n_kept > MANY_VISITS * n_visits:
        text = "counts are too low by that, and no interval covers it. A larger bound leaves out less"
        yield Notice("caution", "many visits are not counted", f"{_left_out(run)}: {text} and needs more noise.")


def _accounts(run: Run) -> Iterator[Notice]:
    is_refused = pl.col("action") == ACTIONS.index("refused")
    refused = [] if run.counts is None else run.counts.windows.filter(is_refused)["window"].to_list()
    if refused:
        shown = ", ".join(map(str, refused[:8])) + (" …" if len(refused) > 8 else "")
        text = f"No budget was left for {plural(len(refused), 'window')} ({shown}): they show an earlier release again."
        yield Notice("caution", "refused windows", text)
    # A pure ε of Gaussian noise is infinite; where the same loss has a figure at some δ, that is no news.
    bounded = {(f.accountant, f.name.rpartition("_")[0]) for f in run.figures if math.isfinite(f.value)}
    for figure in run.figures:
        is_bounded = figure.name.endswith("_epsilon") and (figure.accountant, figure.name) in bounded
        if math.isinf(figure.value) and figure.value > 0 and not smallest_is_worst(figure.name) and not is_bounded:
            compared = describe_neighbours(figure, run.configuration)
            text = f"{figure.accountant} knows no bound for {phrase(figure.name)} ({compared})."
            yield Notice("caution", f"{phrase(figure.name)} is infinite", text)
    provisional = {f.accountant for f in run.figures} - {f.accountant for f in run.figures if f.final}
    if provisional and run.is_over:
        text = f"Later releases over the same events can still raise the figures of {', '.join(sorted(provisional))}."
        yield Notice("caution", "provisional figures", text)


def _budget(run: Run) -> Iterator[Notice]:
    if run.accounts.is_empty():
        return
    rows = run.accounts.filter(pl.col("window").is_not_null()).sort("window", maintain_order=True)
    left_rows, spent_rows = (rows.filter(pl.col("name") == name)["value"] for name in ("budget_left", "budget_spent"))
    if left_rows.is_empty() or spent_rows.is_empty():
        return
    total = left_rows[-1] + spent_rows[-1]
    if left_rows[-1] > NEARLY * total:
        return
    left = "all" if left_rows[-1] <= 1e-9 * total else percent(spent_rows[-1], total)
    text = (
        f"At the last window {left} of the period's {number(total)} nats is spent. A budget schedule plans for that; "
        "any further charge in this period would be refused or stop the run."
    )
    yield Notice("note", "budget spent" if left == "all" else "budget nearly spent", text)


def _rows(run: Run) -> Iterator[Notice]:
    if run.operator is None:
        return
    rows, remark = run.operator["rows"], ""
    offsets = run.operator.get("offsets") or {"shortfall": [], "unchecked": None}
    if offsets["shortfall"]:
        yield Notice("danger", "not all of the input was counted", "; ".join(offsets["shortfall"]))
    elif offsets["unchecked"]:
        text = f"Whether all of the topic was counted is not known: {offsets['unchecked']}."
        yield Notice("caution", "the brokers were not asked", text)
    if unused := run.operator.get("unused"):
        yield Notice("danger", "half of the rows or more were not used", str(unused))
        explained = mostly_lost(rows) or rows
        remark = max(OUTCOMES[1:], key=lambda outcome: int(explained[outcome]))  # it is about these
    for words in run.operator.get("doubts", ()):
        yield Notice("caution", "look at the input", f"{words}.")
    for outcome, title, text in (
        ("rejected", "rejected rows", "that could not be read: left out"),
        ("late", "late rows", "that came after the window was final: left out"),
        ("out_of_area", "rows outside the area", "in no cell: left out"),
        ("out_of_time", "rows outside the time range", "before or after the run: left out"),
        ("clamped", "points outside the area", "outside the area: moved to its edge"),
    ):
        if rows.get(outcome) and outcome != remark:
            share = f"{plural(rows[outcome], 'row')} ({percent(rows[outcome], rows['rows'])})"
            needs_action = outcome in ("rejected", "late") and rows[outcome] > MANY_ROWS * rows["rows"]
            yield Notice("caution" if needs_action else "note", title, f"{share} {text}.")


def _display_notices(run: Run) -> Iterator[Notice]:
    counts = run.counts
    if counts is None:
        return
    if len(counts.cells) < counts.n_all_cells:
        text = f"The charts show the {len(counts.cells):,} busiest of {counts.n_all_cells:,} cells; the files hold all."
        yield Notice("note", "not all cells are shown", text)
    if len(counts.windows) < counts.n_all_windows:
        text = f"The charts show the latest {len(counts.windows):,} of {counts.n_all_windows:,} windows."
        yield Notice("note", "not all windows are shown", text)
    if (counts.released < 0).any():
        text = (
            "Noise makes counts negative where few people are. {type: clip} at the end of mechanism shows 0 there, at "
            "no cost in privacy; sums over many cells are then too high."
        )
        yield Notice("note", "negative counts", text)


def figures_table(run: Run) -> Table:
    """Return a table of all accounting metrics."""
    rows = [
        [
            figure.accountant,
            treatment(figure.accountant).label(figure.name),
            (number(figure.value, 3), figure.value),
            figure.unit,
            "whole run" if figure.window is None else f"window {figure.window:,}",
            "" if figure.high is None else f"{number(figure.low, 3)} to {number(figure.high, 3)}",
            f"{figure.n_subjects:,}",
            describe_neighbours(figure, run.configuration),
            "final" if figure.final else "provisional",
        ]
        for figure in run.figures
    ]
    columns = ["Accountant", "Figure", "Value", "Unit", "When", "Interval", "Subjects", "Compared", "Status"]
    return Table(columns, rows, "Of the whole run, or the worst over windows and subjects")


def row_equation(run: Run) -> dict[str, Any]:
    """Return the number of rows by outcome as an equation, along with remarks and rejected rows."""
    if run.operator is None:
        return {"equation": None}
    rows = run.operator["rows"]
    remarks = [
        f"Of the used rows {rows['duplicates']:,} repeat a {ONE[run.counted]} in the same cell and window.",
        f"{_left_out(run)}." if _left_out(run) else "",
        f"{run.counted.capitalize()}: {describe_users(run.operator['users'])}." if run.operator.get("users") else "",
    ]
    rejected = [{"line": row.get("offset", "")} | row for row in run.rejects(MAX_REJECTS)]
    examples = [[str(row.get(name, "")) for name in ("file", "line", "reason", "raw")] for row in rejected]
    reasons = [[reason, (f"{n:,}", n)] for reason, n in rows["rejected_by_reason"].items()]
    rejects = [
        Table(["Reason", "Rows"], reasons, "Rejected rows by reason"),
        Table(["File", "Line", "Reason", "Row"], examples, f"The first {len(examples)} rejected rows"),
    ]
    terms = " + ".join(f"{rows[outcome]:,} {phrase(outcome)}" for outcome in OUTCOMES)
    return {
        "equation": f"{rows['rows']:,} rows = {terms}",
        "rows": [("", remark) for remark in remarks if remark],
        "rejects": rejects if rows["rejected"] else [],
    }


def provenance(run: Run) -> dict[str, Any]:
    """Return the configuration, versions, seed, input digests and citation."""
    manifest: dict[str, Any] = run.operator or run.public
    noise = manifest.get("noise", {})
    facts = {**identity(manifest), "mode": run.public["mode"]}
    facts |= {f"noise key {key}": value for key, value in noise.items() if key != "seed"}
    facts |= {f"seconds, {phase}": number(seconds) for phase, seconds in manifest.get("seconds", {}).items()}
    if "exit" in manifest:
        facts["exit"] = f"{manifest['exit']['code']} ({manifest['exit']['reason']})"
    configuration, key = dict(run.configuration), ""
    if run.public_only:
        configuration.pop("output", None)  # folders and topics of the operator
    elif run.is_deployment:
        key = "# add: noise_key: FILE\n"
    if run.operator and "seed" in noise:
        configuration["seed"] = noise["seed"]
    again = "As far as it is public: without source, key and output."
    return {
        "again": again if run.public_only else "Save it as a file and run it again:",
        "command": "" if run.public_only else "penstock run FILE",
        "configuration": key + as_yaml(configuration),
        "facts": facts,
        "versions": manifest["versions"],
        "citation": citation(str(run.public["name"]), run.cited),
        "inputs": Table(["Input", "SHA-256"], list(manifest.get("inputs", {}).items()), "Digests of the inputs"),
    }


def as_yaml(configuration: dict[str, Any]) -> str:
    """Format a configuration as YAML. Sections appear in the customary order, and ``type`` comes first in each."""

    def ordered(value: Any, first: tuple[str, ...] = ("type",)) -> Any:
        """Move the given keys to the front of every mapping."""
        if isinstance(value, list):
            return [ordered(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        return {key: ordered(value[key]) for key in [*(key for key in first if key in value), *value]}

    written: str = yaml.safe_dump(ordered(configuration, SECTIONS), sort_keys=False, allow_unicode=True, width=110)
    return written
