"""The glossary defines the terms that reports use."""

from __future__ import annotations

import re

import pytest

from penstock.mechanisms.core.contract import MECHANISMS
from penstock.pipeline.reporting.accounts import KNOWN, METRIC_TITLES
from penstock.pipeline.reporting.glossary import sections, terms_of
from tests.tools.checkout import ROOT

PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
ENTRIES = re.findall(r"^\* \*\*(.+?)\*\*: (.+)$", PAGE, re.MULTILINE)
TERMS = {term.lower(): meaning for term, meaning in ENTRIES}


def test_every_term_has_a_meaning_and_stands_once():
    assert len(ENTRIES) == len(TERMS) > 40
    assert all(meaning.endswith(".") for meaning in TERMS.values())


@pytest.mark.parametrize("term", ["budget", "membership inference", "temporal privacy loss", "reconstruction risk"])
def test_titles_of_the_reports_charts_are_terms(term):
    assert term in {known.title.lower() for known in KNOWN.values()}
    assert term in TERMS


def test_what_accountants_labels_and_metrics_say_is_there():
    message = " ".join(label for known in KNOWN.values() for label in (*known.labels.values(), known.title, known.note))
    for word in (
        "landmark",
        "budget period",
        "ε",
        "ρ",
        "δ",
        "Rényi",
        "loss distribution",
        "backward",
        "forward",
        "crowd",
    ):
        assert word.lower() in message.lower()
        assert word.lower() in PAGE.lower()
    for title in ("Jensen–Shannon distance", "Kendall's τ", "Pearson correlation", "Variance explained"):
        assert title in METRIC_TITLES.values()
        assert title.lower() in TERMS


def test_units_and_guarantees_of_mechanisms_are_explained():
    stated = {MECHANISMS.get(name).examples()[0].guarantee.in_general.statement for name in MECHANISMS.names()}
    for family in ("differential privacy", "w-event", "geo-indistinguishability", "zero-concentrated"):
        assert any(family in statement for statement in stated), family
        assert family.lower() in PAGE.lower()


def test_the_terms_in_brackets_of_the_statement_are_terms():
    folder = ROOT / "penstock" / "pipeline" / "reporting"
    parts = ("data_protection.py", "templates/statement.html")
    source = "\n".join((folder / name).read_text(encoding="utf-8") for name in parts)
    named = re.findall(r'"[A-Z][^"]* \(([a-z][a-z ]+)\)"', source)
    assert len(named) >= 10
    for term in named:
        known = term.rstrip("s") if term in ("landmarks", "accountants") else term.removesuffix(" in force")
        assert known in TERMS or known in ("theorem", "operator"), term


def test_a_page_explains_the_terms_that_it_says_and_no_others():
    packed = {"title": "Loss of one window", "lines": [{"label": "pure", "value": {"packed": "ledger"}}]}
    terms = terms_of("<p class='sensor'>Cells, in nats &amp; with ε = 2</p>", [packed], None)
    assert list(terms) == ["cell", "window", "ε (epsilon)", "nats"]
    assert terms["cell"] == sections()["What is counted"]["cell"]
    assert terms_of("nothing that needs a word", {"packed": "ε"}) == {}
