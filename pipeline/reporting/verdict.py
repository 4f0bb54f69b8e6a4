"""The top of the page: what was released, for whom it is safe, and what to be wary of, in plain words."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from pipeline.reporting.accounts import Figure
from pipeline.reporting.markup import Html, element, join
from pipeline.reporting.run_data import RunData
from pipeline.reporting.treatment import metric_words, treatment
from pipeline.reporting.words import moment, number, phrase, plural

#: So many verdict numbers stand side by side, without headings.
ONE_ROW = 4
#: From this ε on (nats) a factor of e^ε is no longer a number that says anything.
HOPELESS = 50


@dataclass(frozen=True)
class Headline:
    """A verdict number.

    Parameters
    ----------
    label, value, unit, note
        What it is, the number, what it is measured in, and against whom or over what.
    """

    label: str
    value: str
    unit: str
    note: str


def verdict(run: RunData) -> Html:
    """Opening paragraphs and verdict numbers."""
    paragraphs = [element("p", _released(run), class_="standfirst"), *_guarantees(run)]
    costs, use = _costs(run), _utility(run)
    groups = [("Cost and risk", costs), ("Use", use)] if len(costs + use) > ONE_ROW else [(None, costs + use)]
    return join(*paragraphs, *(headlines(title, numbers) for title, numbers in groups if numbers))


def headlines(title: str | None, numbers: list[Headline]) -> Html:
    """Verdict numbers, under a small heading if there is one."""
    shown = [
        element(
            "div",
            element("dt", headline.label),
            element("dd", element("span", headline.value, class_="value"), element("span", headline.unit)),
            element("dd", headline.note, class_="note") if headline.note else None,
        )
        for headline in numbers
    ]
    heading = element("p", title, class_="kicker group") if title else None
    return join(heading, element("dl", *shown, class_="headlines"))


def _released(run: RunData) -> str:
    public, counts = run.files.public, run.counts
    if counts is None:
        return _traces(run) or "Nothing has been released yet."
    planned = public.get("windows")
    done = ", ".join(f"{n:,} {action}" for action, n in counts.windows.done())
    people = "people" if public.get("distinct_people", True) else "trips"
    begin, end = (moment(int(at), run.time_zone) for at in (counts.windows.start[0], counts.windows.end[-1]))
    shown = "" if counts.n_all_windows == len(counts.windows) else f" (the latest {len(counts.windows):,} are shown)"
    of_planned = f" of {planned:,}" if planned else ""
    return (
        f"Counts of distinct {people} in {plural(counts.n_all_cells, 'cell')} were released for "
        f"{counts.n_all_windows:,}{of_planned} windows{shown}, from {begin} to {end} ({run.time_zone}): {done}."
    )


def _traces(run: RunData) -> str | None:
    """Of a run that releases traces: how many points of how many people."""
    traces = run.files.table("public/traces")
    if traces is None:
        return None
    done = ", ".join(f"{n:,} {action}" for action, n in traces["action"].value_counts(sort=True).rows())
    return (
        f"Traces of {traces['pseudonym'].n_unique():,} people were released point by point, under pseudonyms: "
        f"{plural(len(traces), 'point')}, {done}."
    )


def promises(guarantee: dict[str, str]) -> bool:
    """Whether a mechanism of the public manifest has a guarantee of its own."""
    return not guarantee["guarantee"].startswith("none")


def _guarantees(run: RunData) -> list[Html]:
    """A paragraph for each step that promises something; other steps of a chain neither add to it nor break it."""
    steps = run.files.public["guarantee"]
    found = [_safe_for(step, run.configuration) for step in steps if promises(step)]
    others = ", ".join(step["mechanism"] for step in steps if not promises(step))
    if found and others:
        found.append(element("p", f"Further steps, without a promise of their own: {others}."))
    if not found:
        text = (
            f"The mechanism {others} promises nothing: whoever sees the releases may learn that a particular person "
            "was in a particular place."
        )
        found.append(element("p", element("strong", "No guarantee. "), text))
    return found


def _safe_for(guarantee: dict[str, str], configuration: dict[str, Any]) -> Html:
    guarantee = {key: with_values(text, configuration) for key, text in guarantee.items()}
    name, statement = guarantee["mechanism"], guarantee["guarantee"]
    section: dict[str, Any] = next((own for own in configuration["mechanism"] if own["type"] == name), {})
    amount, bounded = _epsilon(section), ""
    if amount is not None and "ε-differential privacy" in statement and "δ" not in statement:
        w = f" and w = {section['w']:,} windows" if isinstance(section.get("w"), int) else ""
        statement = f"{statement}, with ε = {number(amount)} nats{w}"
        bounded = f" {_odds(amount, configuration)}"
    elif isinstance(section.get("rho"), int | float):
        statement = f"{statement}, with ρ = {number(section['rho'])}"
    return element(
        "p",
        element("strong", f"{statement}. "),
        f"Protected is {guarantee['unit']}.{bounded} Neighbours: {guarantee['neighbours']}. "
        f"Mechanism: {name}. Proof: {guarantee['theorem']}.",
    )


def with_values(text: str, configuration: dict[str, Any]) -> str:
    """A guarantee with the values of the parameters that it names, such as `radius`."""
    values: dict[str, Any] = {}
    for section in configuration["mechanism"]:
        values |= section
    return re.sub(r"`(\w+)`", lambda name: str(values.get(name[1], name[1])), text)


def _odds(epsilon: float, configuration: dict[str, Any]) -> str:
    """What an ε means to somebody who sees all releases, and what it leaves open."""
    if epsilon >= HOPELESS:
        return "So large an ε promises next to nothing."
    if (configuration.get("windows") or {}).get("type") == "sliding":
        return "Windows overlap: an event is in several of them, and costs as much in each."
    return (
        "For whoever sees everything that was released and knows all other data, the odds that this was in the data "
        f"change by a factor of at most {number(math.exp(epsilon), 3)}. Whoever knows instead how visits depend on "
        "one another can learn more."
    )


def _epsilon(section: dict[str, Any]) -> float | None:
    value = section.get("epsilon")
    return float(value) if isinstance(value, int | float) and value > 0 else None


def _costs(run: RunData) -> list[Headline]:
    by_accountant: dict[str, list[Figure]] = {}
    for figure in run.figures:
        by_accountant.setdefault(figure.accountant, []).append(figure)
    found = []
    for accountant, own in by_accountant.items():
        named = {figure.name: figure for figure in own}
        wanted = treatment(accountant).headline or tuple((name,) for name in list(named)[:2])
        for candidates in wanted:
            present = [named[name] for name in candidates if name in named]
            found += [_headline(figure, run) for figure in present[:1]]
    return found


def _headline(figure: Figure, run: RunData) -> Headline:
    worst = "" if figure.window is None else ", worst"
    # Treatments speak of counts; the rows of traces say themselves what they compare.
    adversary = "" if run.releases_traces else treatment(figure.accountant).adversary
    against = f"Against {adversary}." if adversary else f"Compared: {with_values(figure.adjacency, run.configuration)}."
    value = number(figure.value)
    if figure.high is not None and figure.high > figure.value:
        value += f" to {number(figure.high)}"
    label = treatment(figure.accountant).label(figure.name) + worst
    provisional = "" if figure.final else " Provisional: releases after a window can still raise its figure."
    many = f" The worst of {figure.n_subjects:,}." if figure.n_subjects > 1 else ""
    return Headline(label[0].upper() + label[1:], value, figure.unit, against + many + provisional)


def _utility(run: RunData) -> list[Headline]:
    found = []
    for name, value in ((run.files.operator or {}).get("utility") or {}).items():
        title, unit, note = metric_words(name)
        if run.releases_traces:
            unit, note = "metres", "Distance of released and true points, mean over all points."
        found.append(Headline(title, number(value), unit, note or "Released against the truth, over the whole run."))
    return found


def users_sentence(manifest: dict[str, Any]) -> str | None:
    """Who was counted, from the operator's summaries."""
    users = manifest.get("users")
    spreads = {name: spread for name, spread in (users or {}).items() if isinstance(spread, dict) and spread}
    if not users or not spreads:
        return None
    of_what = [phrase(name.removesuffix("_per_user")) for name in spreads]
    medians = [
        f"{number(spread['median'])} {what.removesuffix('s') if spread['median'] == 1 else what}"
        for what, spread in zip(of_what, spreads.values())
    ]
    return f"People: {users['users']:,}, each with {' and '.join(medians)} (medians)."
