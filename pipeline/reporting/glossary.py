"""Plain-language glossary of the terms used in reports. ``docs/generate.py`` writes it to ``docs/glossary.md``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html import unescape
from typing import Any

import yaml

from penstock.pipeline.reporting.markup import package_text


@cache
def sections() -> dict[str, dict[str, str]]:
    """Return each term's definition, grouped by section."""
    terms: dict[str, dict[str, str]] = yaml.safe_load(package_text(("glossary.yaml",)))
    return terms


def markdown() -> str:
    """Return the glossary in Markdown, with one list per section."""
    return "\n\n".join(
        f"## {title}\n\n" + "\n".join(f"* **{term}**: {meaning}" for term, meaning in terms.items())
        for title, terms in sections().items()
    )


def terms_of(*parts: Any) -> dict[str, str]:
    """Return the definitions of all glossary terms that occur in the given markup and data. Packed arrays are skipped.

    >>> terms_of("<p>A budget of 2 nats</p>")
    {'nats': 'The unit of ε: natural logarithms of odds.', 'budget': 'The most that may be lost in all. ...'}
    """
    text = " ".join(unescape(re.sub(r"<[^>]*>", " ", part)) for part in _texts(parts))
    terms = {term: meaning for section in sections().values() for term, meaning in section.items()}
    names = {term: re.split(r", | \(", term.removesuffix(")")) for term in terms}  # in all spellings
    patterns = {term: rf"(?<!\w)({'|'.join(map(re.escape, names[term]))})s?(?!\w)" for term in terms}
    return {term: meaning for term, meaning in terms.items() if re.search(patterns[term], text, re.IGNORECASE)}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict) and "packed" not in value:
        yield from _texts(tuple(value.values()))
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _texts(part)
