"""Losses in words are no less than what is priced."""

from __future__ import annotations

import math

import numpy as np

from penstock.pipeline.output.loss import caution, describe_losses, even_odds, short_loss
from penstock.pipeline.reporting.summary import loss_row

RNG = np.random.default_rng(1)
LOSSES = [*(10 ** RNG.uniform(-4, 4, 400)), 0.1 + 0.2, 17.142857, 99.96, 999.5, 1203.2]


def test_a_loss_is_rounded_up():
    for loss in LOSSES:
        check_loss(loss)


def check_loss(loss):
    stated = float(short_loss(loss).replace(",", ""))
    assert loss * (1 - 1e-11) <= stated <= loss * 1.01
    assert f"at most ε = {short_loss(loss)} by a day" in describe_losses({"release": loss, "day": loss, "run": loss})
    assert short_loss(loss) in (caution({"release": loss, "day": loss, "run": loss}) or short_loss(loss))


def test_odds_are_rounded_up():
    for loss in (0.0, *LOSSES):
        check_odds(loss)


def check_odds(loss):
    share, words = 100 / (1 + math.exp(-loss)), even_odds(loss)
    if words == "over 99.9 %":
        assert share > 99.9
    else:
        assert share * (1 - 1e-11) <= float(words.removesuffix(" %")) < share + 0.11
    label, stated, factor, odds = loss_row("a day", loss)
    assert (label, stated, odds) == ("a day", short_loss(loss), words)
    if factor.startswith("×"):
        assert float(factor.removeprefix("× ").replace(",", "")) >= math.exp(loss) * (1 - 1e-11)
