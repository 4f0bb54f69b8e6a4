"""Glossary: the terms that reports use, in plain words. ``docs/generate.py`` writes them into ``docs/glossary.md``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

from markupsafe import Markup

from penstock.pipeline.reporting.markup import element, plural

#: Meaning of each term, by section.
SECTIONS: dict[str, dict[str, str]] = {
    "What is counted": {
        "cell": (
            "A place that is counted by itself: a square of a grid, a hexagon, a station, a zone. The list of "
            "cells is public."
        ),
        "window": (
            "A stretch of time that is counted by itself, such as an hour. Its counts are final, and released once."
        ),
        "event": "One row of the input: a person was at a place at a time.",
        "membership": "One person in one cell in one window, however many events that is. It adds 1 to one count.",
        "landmark": "A window that matters to everybody, such as a rush hour, publicly known beforehand.",
        "sensor": "What counts in a cell. A sensor that is not active publishes nothing, and everybody knows when.",
        "lateness": (
            "How long after its end a window waits for rows. What comes later is counted as late, and not used."
        ),
        "watermark": "How far the clock of a stream has come: no row from before it is waited for.",
        "out of area, out of time": (
            "Rows in no cell, or before or after the run. They are counted as such, and not used."
        ),
        "traces": "Points of a person's way, released one by one under a pseudonym, in place of counts.",
    },
    "What is promised": {
        "guarantee": "What holds of the release whatever an adversary knows or tries, because a theorem says so.",
        "mechanism": "The rule that turns true counts into what is released, mostly by adding noise.",
        "accountant": "A rule that keeps the books: what each release has cost, and what is left.",
        "unit of privacy": "What is hidden: an event, a window of a person, a day, or everything. Nothing larger is.",
        "neighbours": (
            "Two inputs that differ in one unit of privacy. The guarantee makes their releases hard to tell apart."
        ),
        "adjacency": "The same as neighbours: what is compared with what.",
        "differential privacy": (
            "The release is about as likely with one person's unit as without it, so that it says little about "
            "whether it was there."
        ),
        "ε (epsilon)": (
            "The loss: odds about a person change by a factor of at most e^ε. 0 is perfect, 1 is a factor of "
            "2.7, 10 one of 22,000."
        ),
        "nats": "The unit of ε: natural logarithms of odds.",
        "δ (delta)": (
            "The chance with which a loss may be larger than ε. It has to be much smaller than one in the number "
            "of people."
        ),
        "ρ (rho)": (
            "The loss in zero-concentrated differential privacy, the measure that adds up best for Gaussian noise."
        ),
        "Rényi": (
            "A family of losses between averages and the worst case; accountants use it to add up Gaussian noise "
            "tightly."
        ),
        "loss distribution": (
            "How likely each size of the loss is. Adding up whole distributions gives the tightest ε at a δ."
        ),
        "composition": "How losses add up over releases: plainly (ε + ε), or with a δ more slowly.",
        "budget": (
            "The most that may be lost in all. A release that would exceed it is not made, or an earlier one is "
            "repeated."
        ),
        "budget period": (
            "The time after which the budget begins anew. What holds is a promise for each period, not for all of them."
        ),
        "ledger": "The file in which every charge stands before its release leaves, for all runs over the same events.",
        "event-level": "The unit is one person's events in one window.",
        "w-event": "The unit is one person's events in any w successive windows.",
        "user-level": "The unit is a whole person, over the whole run.",
        "geo-indistinguishability": (
            "Nearby points are hard to tell apart, less so the farther apart they are. For traces."
        ),
        "crowd-blending": (
            "Who is counted is one of many with the same count. No promise by itself; with sampling it can become one."
        ),
    },
    "How it is done": {
        "contribution bound": (
            "The most cells of a window that one person counts in; what is beyond is left out. Less noise, and a "
            "bias where people are busy."
        ),
        "period bound": "The most memberships of one person in a whole budget period.",
        "sensitivity": "How much one unit of privacy can change the counts. Noise is scaled to it.",
        "noise": "Random numbers that are added so that no single person can be seen.",
        "Laplace, Gaussian": "Two shapes of noise. The *discrete* ones are whole numbers, drawn exactly.",
        "noise key": "The secret that noise is drawn from in a deployment. Who has it can take the noise away.",
        "seed": "What noise is drawn from in a simulation. It is no secret.",
        "nonce": "Random bytes that a deployment draws at every start and `--resume`, so that no noise is drawn twice.",
        "post-processing": "What is done to releases without looking at the data again. It costs nothing.",
        "filter": "Post-processing that makes the best guess of each count from all releases so far.",
        "simulation, deployment": (
            "A run to try things out, with the truth beside it; a run whose `public/` may be published."
        ),
        "trusted curator": "An operator who sees the data before any noise, and is trusted with it.",
    },
    "What may still be learnt": {
        "adversary": "Someone who tries to learn about a person; each figure says with what knowledge.",
        "temporal privacy loss": (
            "What releases tell about one window through the windows before it (backward) and after it "
            "(forward), because people move in a pattern."
        ),
        "supremum": "The loss that is never passed, were the run to go on for ever.",
        "reconstruction risk": (
            "How likely an adversary retraces a person's way within a tolerance; a bound, or as realised by an attack."
        ),
        "membership inference": (
            "Inferring from counts whether a person is in them. An area under the curve of 0.5 is guessing, 1 is "
            "certainty."
        ),
        "conditional inferential loss": (
            "What a released trace tells about its secret points, when the points of a way depend on each other."
        ),
        "correlation": "That visits depend on one another: of one person over time, or of people who go together.",
        "prior": "What is known before any release, by an adversary or by someone who publishes usual counts instead.",
        "provisional, final": "A figure that later releases can still raise; one that they cannot.",
    },
    "What it is worth": {
        "mean absolute error": "By how many people a count is wrong, on average.",
        "95 % interval": "Holds the true count 95 times out of 100; it never goes below 0, as no count does.",
        "skill": (
            "How much of the error of a release that costs nothing (zeros, the last release, the prior) is avoided: "
            "1 is all of it, below 0 is worse."
        ),
        "variance explained": "The share of the ups and downs of the true counts that the release shows.",
        "Kendall's τ": "Whether places are in the right order: 1 is the same order, 0 any, −1 the reverse.",
        "hotspots (F1)": "Whether the busiest places are found: 1 is all of them and no others.",
        "Pearson correlation": "Whether released and true counts rise and fall together: 1 is fully.",
        "Jensen–Shannon distance": (
            "How far apart two distributions over places are: 0 is the same, 1 nothing in common."
        ),
    },
}


def markdown() -> str:
    """Return the glossary as lists, one a section."""
    return "\n\n".join(
        f"## {title}\n\n" + "\n".join(f"* **{term}**: {meaning}" for term, meaning in terms.items())
        for title, terms in SECTIONS.items()
    )


def words(*parts: Any) -> Markup | None:
    """Foldable glossary of the terms on a page; None if there are none.

    ``said`` is markup and data of the page; packed arrays in it are passed over.

    >>> print(words("<p>A budget of 2 nats</p>"))
    <details><summary>2 terms in plain words</summary><dl class="words"><dt>nats</dt><dd>The unit of ε: ...
    """
    text = " ".join(unescape(re.sub(r"<[^>]*>", " ", part)) for part in _texts(parts))
    terms = {term: meaning for section in SECTIONS.values() for term, meaning in section.items() if _says(text, term)}
    if not terms:
        return None
    entries = (part for term, meaning in terms.items() for part in (element("dt", term), element("dd", meaning)))
    title = f"{plural(len(terms), 'term')} in plain words"
    return element("details", element("summary", title), element("dl", *entries, class_="words"))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and "packed" not in value:
        yield from _texts(tuple(value.values()))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)


def _says(text: str, term: str) -> bool:
    """Return whether a text has a term, one of its spellings, or its plural."""
    names = re.split(r", | \(", term.removesuffix(")"))
    return any(re.search(rf"(?<!\w){re.escape(name)}s?(?!\w)", text, re.IGNORECASE) for name in names)
