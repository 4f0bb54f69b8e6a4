"""The statement for the data-protection officer: what a release promises, what not, and what it takes for granted."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.output import files
from penstock.pipeline.output.maps import CELLS, OUTLINES
from penstock.pipeline.output.worth import UNBOUNDED
from penstock.pipeline.reporting.accounts import treatment
from penstock.pipeline.reporting.data import Run
from penstock.pipeline.reporting.experiment import is_experiment
from penstock.pipeline.reporting.markup import (
    Html,
    definitions,
    document,
    element,
    join,
    number,
    plural,
    table,
)
from penstock.pipeline.reporting.summary import HOPELESS, odds, promises, released, stated, with_values

STATEMENT = "data_protection.html"
STYLES = ("page.css", "statement.css")
#: Published files that a signature is about; exports and pages are made from them.
SIGNED = ("manifest.json", "releases.parquet", "traces.parquet", "accounts.parquet", CELLS, OUTLINES)


def write_statement(folder: str | Path) -> Path:
    """Write the printable statement of a run for its data-protection officer, ``public/data_protection.html``.

    **Privacy**: made from ``public/`` alone, and as fit for publication as what is there.

    ``public/`` in the folder is enough. Returns the page's path. Raises `DataError` if there is no run in the folder,
    or a file of it cannot be read.
    """
    folder = Path(folder)
    if is_experiment(folder):
        raise DataError(f"{folder}: an experiment publishes nothing; the statement is about a run")
    path = folder / "public" / STATEMENT
    files.write_text(path, statement(Run(folder, public_only=True)))
    return path


def statement(run: Run) -> str:
    """The page, a function of the published files: without script, to be read, printed and signed."""
    name = str(run.public["name"])
    mode = "deployment" if run.is_deployment else "simulation"
    sections: list[tuple[str, Html]] = [
        ("What is promised, and to whom", _promised(run)),
        ("What one person can lose", _losses(run)),
        ("What is not promised", _not_promised(run)),
        ("What is assumed", _assumed(run)),
        ("Who could still learn what", _adversaries(run)),
        ("What to cite", _cited(run)),
        ("Signed", _signed()),
    ]
    header = element(
        "header",
        element("p", f"penstock · {mode} · for the data-protection officer", class_="kicker"),
        element("h1", f"What “{name}” promises, and what it does not"),
        *_first_lines(run),
    )
    numbered = (
        element("section", element("h2", f"{at}. {title}"), content) for at, (title, content) in enumerate(sections, 1)
    )
    title = f"{name} · statement for the data-protection officer"
    return document(title, STYLES, element("main", header, *numbered))


def _first_lines(run: Run) -> list[Html]:
    public, found = run.public, []
    if not run.is_deployment:
        text = f"{public['notice']} Below is what the same release would promise if it were deployed."
        found.append(("A simulation. ", text))
    kept = [step for step in public["guarantee"] if promises(step)]
    if not kept:
        steps = ", ".join(step["mechanism"] for step in public["guarantee"])
        text = (
            f"What was released carries no promise of privacy ({steps}{_because(run)}): someone who sees it may "
            "learn that a particular person was in a particular place. Do not publish it as protected."
        )
        found.append(("No guarantee. ", text))
    for step in kept:
        statement, epsilon = stated(step, run.configuration)
        text = f"Noise hides {with_values(step['unit'], run.configuration)}, and nothing larger ({statement})."
        if epsilon is not None and epsilon >= HOPELESS:
            text += f" With so large an ε it promises next to nothing: {number(epsilon)} nats."
        found.append(("A limited promise. ", text))
    lines = [element("p", element("strong", title), text, class_="standfirst") for title, text in found]
    going_on = "" if run.is_over else " The run goes on: every figure here is provisional."
    made = "This page is made from the published files alone; the words in brackets are the terms of the field."
    return [*lines, element("p", f"{released(run)}{going_on} {made}")]


def _because(run: Run) -> str:
    lateness = str(run.public.get("lateness", ""))
    return f"; lateness is {lateness}" if lateness.startswith("shared") else ""


def _sheet(caption: str, rows: Sequence[Sequence[str]], columns: Sequence[str] = ()) -> Html:
    """A table with the first cell of a row as its heading, and a heading for each column where they are given."""
    heads = (element("th", column, scope="col") for column in columns)
    head = element("thead", element("tr", *heads)) if columns else None
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    ]
    return element("table", element("caption", caption), head, element("tbody", *body), class_="sheet")


# 1. Promised.


def _promised(run: Run) -> Html:
    steps = run.public["guarantee"]
    sheets = [_promise(step, run.configuration) for step in steps if promises(step)]
    others = ", ".join(step["mechanism"] for step in steps if not promises(step))
    if not sheets:
        sheets = [element("p", f"Nothing, to nobody. In force: {others}{_because(run)}.")]
    elif others:
        text = f"Further steps ({others}) neither add to the promise nor break it: they see what the others release."
        sheets.append(element("p", text))
    return join(*sheets, _sheet("The same for everybody", [("To whom", _whom(run)), *_bounds(run)]))


def _promise(step: dict[str, str], configuration: dict[str, Any]) -> Html:
    said = {key: with_values(text, configuration) for key, text in step.items()}
    statement, epsilon = stated(step, configuration)
    rows = [
        ("What is hidden (unit of privacy)", said["unit"]),
        ("What is compared (neighbours)", f"{said['neighbours']}: the release is about as likely with it as without"),
        ("How well (guarantee)", statement),
    ]
    if epsilon is not None:
        rows.append(("In other words", odds(epsilon, configuration)))
    rows += [
        ("Why it holds (theorem)", said["theorem"]),
        ("What does it (mechanism in force)", f"{said['mechanism']}{_settings(said['mechanism'], configuration)}"),
    ]
    return _sheet(f"The promise of {said['mechanism']}", rows)


def _settings(mechanism: str, configuration: dict[str, Any]) -> str:
    section: dict[str, Any] = next((own for own in configuration["mechanism"] if own["type"] == mechanism), {})
    named = ", ".join(f"{key} {value}" for key, value in section.items() if key != "type" and value is not None)
    return f" ({named})" if named else ""


def _whom(run: Run) -> str:
    if run.public.get("distinct_people", True):
        return "Every person whose events are counted, the same to each, against anybody who sees what is published."
    return (
        "Every trip, the same to each: the source knows trips, not people, so that a person who travels twice counts "
        "twice and is protected per trip."
    )


def _bounds(run: Run) -> list[tuple[str, str]]:
    """Contribution bounds, landmarks and period, as far as the run has them."""
    configuration, sensitivity = run.configuration, run.public.get("sensitivity")
    bounding, rows = configuration.get("bounding") or {}, []
    if sensitivity:
        most = f"In {plural(int(sensitivity['max_cells']), 'cell')} of a window."
        is_bounded = bounding.get("max_cells") is not None or bounding.get("max_per_period") is not None
        if not is_bounded and sensitivity["max_cells"] > 1:
            most += f" {UNBOUNDED.format(n_cells=int(sensitivity['max_cells']))}"
        rows.append(("A person counts at most (contribution bound)", most))
    period = configuration.get("budget_period")
    if (most_kept := bounding.get("max_per_period")) is not None:
        within = f"in each {period}" if period else "in the whole run"
        memberships = (sensitivity or {}).get("memberships") or {}
        text = f"{plural(int(most_kept), 'membership')} (cell × window) {within}, the earliest first."
        if memberships:
            text += (
                f" A person moves at most {memberships['window']:,} of the counts of a window, "
                f"{memberships['day']:,} of a day, {memberships['run']:,} of the run. "
                "Where only a part of a period is taken away, later memberships take its place: the books below price "
                "that."
            )
        rows.append(("Over a longer time (period bound)", text))
    elif sensitivity:
        rows.append(("Over a longer time (period bound)", "No bound: who comes every day counts every day."))
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
    so_far = f" Released so far: {n_released:,}." if n_released else ""
    return f"Public: {'; '.join(given)}.{so_far}"


# 2. Lost.


def _losses(run: Run) -> Html:
    found = run.losses
    if found is None:
        return element("p", "Nothing has been released yet.")
    if math.isinf(found["release"]):
        first = element("p", "What one person loses has no bound: not by one release, not by a day, not by the run.")
    else:
        what = "one release" if run.traces is None else "one point"
        rows = [
            (label, number(found[name]), _factor(found[name]), _after_even_odds(found[name]))
            for name, label in (("release", f"By {what}"), ("day", "By a day"), ("run", "By the whole run"))
        ]
        delta = f", at δ = {found['delta']:g}: with that chance a loss may be larger" if "delta" in found else ""
        columns = ("Lost", "Loss (ε in nats)", "Odds change at most by", "Even odds (50 %) become at most")
        first = join(
            _sheet(f"The most that one person can lose (sums of the published charges{delta})", rows, columns),
            element(
                "p",
                "The odds are those that an observer gives to a person's having been there, before and after seeing "
                "all that is published, if they know everything else. A day pays for every release that shares time "
                "with it.",
            ),
        )
    return join(first, _books(run))


def _factor(epsilon: float) -> str:
    return f"× {number(math.exp(epsilon), 3)}" if epsilon < HOPELESS else "any factor: next to no protection"


def _after_even_odds(epsilon: float) -> str:
    """What even odds become.

    >>> _after_even_odds(0.0), _after_even_odds(1.0), _after_even_odds(144.0)
    ('50.0 %', '73.1 %', 'over 99.9 %')
    """
    share = 1 / (1 + math.exp(-epsilon))
    return "over 99.9 %" if share > 0.999 else f"{100 * share:.1f} %"


def _books(run: Run) -> Html | None:
    """Public figures of the accountants."""
    if not run.figures:
        return None
    rows = [
        [
            f"{treatment(figure.accountant).label(figure.name)} ({figure.accountant})",
            f"{number(figure.value)} {figure.unit}",
            with_values(figure.adjacency, run.configuration),
            "the whole run" if figure.window is None else f"the worst window, {figure.window:,}",
            "final" if figure.final else "provisional",
        ]
        for figure in run.figures
    ]
    return _sheet("The published books (accountants)", rows, ("Figure", "Value", "Compared", "Of", "Status"))


# 3. Not promised.


def _not_promised(run: Run) -> Html:
    found = [
        "A mechanism protects its unit of privacy (table above) and nothing larger: with an event-level guarantee a "
        "person seen in a hundred windows is protected a hundred times less.",
    ]
    if not run.configuration.get("allow_empty"):
        found.append(
            "A run over recorded files publishes nothing where not one row can be used: that there is a release then "
            "reveals that someone was there, which no budget covers (allow_empty: true publishes empty counts)."
        )
    if not run.is_deployment:
        found.append("A simulation's seed undoes its noise: its outputs are unfit for publication, and say so.")
    found += [
        "Which cells and windows exist, which windows are landmarks and which sensors are active are public facts; "
        "choose them without looking at the data.",
        "Contribution bounding removes what a person contributes beyond the bound; it biases the counts of crowded "
        "hours.",
        "operator/ holds true counts, rejected rows and the ledger. It is not for publication.",
        "What holds of many people is learnt, and meant to be: that a place is busy may be true of someone who was "
        "never counted, too. A promise of this kind is about what a person's own events add.",
        "Someone who knows how a person's visits, or those of people who travel together, depend on one another can "
        "learn more than from one visit alone (temporal privacy loss, correlation).",
        "When a release appears can show how busy the run was; output.delay evens that out.",
        "Anonymity in the sense of the law is not decided here: that is for the person who signs below.",
    ]
    return element("ul", *(element("li", text) for text in found))


# 4. Assumed.


def _assumed(run: Run) -> Html:
    deployed, head = run.is_deployment, run.public.get("ledger_head")
    key = (
        ("drawn from a secret key", "Anyone who has the key can remove all noise.")
        if deployed
        else ("drawn from a seed", "The seed is no secret: anyone who has it can remove all noise.")
    )
    nonce = (
        ("every deployment draws its own, once", "Two runs would share noise: their difference shows who is missing.")
        if deployed
        else ("a simulation has none: its seed decides everything", "Runs with the same seed share their noise.")
    )
    ledger = "its head is below" if head else "no head is published"
    rows = [
        (
            "The operator is honest (trusted curator)",
            "machine, memory, account of the run and the source are trusted",
            "The operator sees every row before any noise.",
        ),
        ("The noise stays secret (noise key)", *key),
        ("No noise is drawn twice (nonce)", *nonce),
        (
            "Being late tells nothing (lateness)",
            str(run.public.get("lateness", "not stated by the version that made this run")),
            "One person's rows would decide whether other people's count.",
        ),
        (
            "Clocks run right",
            "of the broker or collector that stamps what arrives, where there is one",
            "A clock that is moved makes rows late, of some people or of all.",
        ),
        (
            "Everything is charged once (ledger)",
            f"every release over the same events is charged to one ledger; {ledger}",
            "Runs on ledgers of their own add up, and nobody counts the sum.",
        ),
        (
            "One person is one user id",
            "as the source names them" if run.public.get("distinct_people", True) else "not so: the source names trips",
            "Who has many ids is counted, and protected, as many people.",
        ),
        (
            "Public facts are public",
            "cells, windows, landmarks and sensors were chosen without looking at the data",
            "The choice itself would tell of the data, outside of every figure here.",
        ),
    ]
    return _sheet("What the promise takes for granted", rows, ("Assumption", "In this run", "If it does not hold"))


# 5. Adversaries, by the names of docs/security.md.


def _adversaries(run: Run) -> Html:
    within = "what the promise above leaves open" if any(map(promises, run.public["guarantee"])) else "anything"
    repeated = (
        "their noise averaged, within the budget of the ledger that they share; that two configurations are the same"
        if run.is_deployment
        else "everything, from the seed"
    )
    rows = [
        (
            "the public",
            "public/, topics of releases, and when something appears there",
            f"{within}; how busy a run is, where its releases appear late",
        ),
        ("a reader of several runs", "public/ of all runs over the same events", repeated),
        (
            "a reader of the operator's folder, logs or metrics",
            "operator/, checkpoints, what is printed",
            "counts of rows, how busy the run is"
            + ("; no user id, position or key" if run.is_deployment else "; in a simulation the true counts"),
        ),
        (
            "a participant who sends rows",
            "the releases, like the public",
            "no more than the public; can add rows of their own, and delay a release by their number",
        ),
        (
            "a writer of configurations or archives that others run",
            "nothing",
            "nothing: text and archives are read as hostile. A plug-in is code, and has all rights of the run",
        ),
        (
            "the operator of the broker",
            "all rows",
            "everything in the rows; with its clock or by holding messages back decides what is late",
        ),
        ("the holders of the noise key", "the key", "with public/, the counts without their noise"),
    ]
    where = element("p", "Names and details as in docs/security.md, under Adversaries; terms as in docs/glossary.md.")
    return join(_sheet("Adversaries", rows, ("Who", "Sees", "Can still learn or do")), where)


# 6 and 7. Cited and signed.


def _cited(run: Run) -> Html:
    public = run.public
    facts = {
        "name": public["name"],
        "mode": public["mode"],
        "penstock": str(public["versions"].get("penstock", "unknown")),
        "configuration (SHA-256)": public["configuration_digest"],
    }
    if "ledger_head" in public:
        facts["ledger head"] = public["ledger_head"]
    digests = [[name, digest] for name, digest in _digests(run.folder / "public").items()]
    versions = ", ".join(f"{name} {version}" for name, version in public["versions"].items() if name != "penstock")
    return join(
        definitions(facts),
        table(["Published file", "SHA-256"], digests, "The files that this page is about"),
        element("p", f"Made with {versions}.", class_="versions"),
    )


def _digests(folder: Path) -> dict[str, str]:
    found = [folder / name for name in SIGNED if (folder / name).is_file()]
    made = {}
    for path in found:
        with path.open("rb") as file:
            made[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return made


def _signed() -> Html:
    lines = [[role, "", "", ""] for role in ("Responsible for the release (operator)", "Data-protection officer")]
    text = "Read and found right, or with these remarks:"
    sheet = _sheet("Signatures", lines, ("Role", "Name", "Place and date", "Signature"))
    return element("div", element("p", text), element("div", class_="remarks"), sheet, class_="signatures")
