"""The contract of mechanisms: few members, stated in one place, none looked up by name with a default."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from penstock import mechanisms
from penstock.mechanisms.core.contract import (
    NOISELESS,
    Facts,
    Interpretation,
    Mechanism,
    Postprocess,
    amounts,
    noise_of,
)
from penstock.mechanisms.core.plugin import parameter, parameters_of
from tests.tools.checkout import ROOT

#: A member of a step that is asked for by name, with what to do if there is none.
STEP = r"(?:\w+\.)*(?:mechanism|reader|step|schedule)(?:\[-?\d\])?"
BY_NAME = re.compile(rf"getattr\({STEP}, \"|hasattr\({STEP},")


def test_a_mechanism_has_at_most_ten_members():
    assert len([name for name in dir(Mechanism) if not name.startswith("_")]) <= 10


def test_nobody_asks_a_mechanism_for_what_its_contract_does_not_name():
    asked = [
        f"{path.relative_to(ROOT)}:{number}"
        for package in ("mechanisms", "accountants", "evaluation", "pipeline", "penstock/testing")
        for path in sorted((ROOT / package).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if BY_NAME.search(line)
    ]
    assert asked == []


@pytest.mark.parametrize(
    "line", ['getattr(facts.mechanism, "w", None)', 'getattr(config.mechanism[-1], "noise", 0)', 'hasattr(step, "x")']
)
def test_what_asks_by_name_is_noticed(line):
    assert BY_NAME.search(line)


@pytest.mark.parametrize("name", mechanisms.names())
def test_no_parameter_of_a_base_is_taken_away(name):
    """Every parameter of a class is one of each class that inherits from it."""
    kind = mechanisms.get(name)
    for base in kind.__mro__[1:]:
        if hasattr(base, "__dataclass_fields__"):
            assert parameters_of(base).keys() <= parameters_of(kind).keys()


def test_amounts_and_noise_are_read_from_parameters():
    laplace, gaussian = mechanisms.get("laplace")(epsilon=2.0), mechanisms.get("discrete_gaussian")(sigma=0.0)
    assert (amounts(laplace), noise_of(laplace)) == ({"epsilon": 2.0}, "laplace")
    assert (amounts(gaussian), noise_of(gaussian)) == ({"sigma": NOISELESS["sigma"]}, "discrete_gaussian")


def test_a_step_without_an_interpretation_releases_noisy_counts():
    class Own(Interpretation):
        def without_noise(self, counts):
            return counts // 2

    assert Interpretation.of(Postprocess()).adds_noise_only
    assert not Own().adds_noise_only
    assert Interpretation.of(Own()).noise_in(7, 10) == 2
    assert Own().measured(Facts(n_cells=1)).windows is None


def test_an_interpretation_that_would_not_be_read_is_refused():
    with pytest.raises(TypeError, match=r"Halved has without_noise: it must derive from Interpretation, too"):

        class Halved(Postprocess):
            def without_noise(self, counts):
                return counts // 2


def test_an_inherited_interpretation_that_would_not_be_read_is_refused():
    class Halving:
        def without_noise(self, counts):
            return counts // 2

    with pytest.raises(TypeError, match="Halved has without_noise"):

        class Halved(Halving, Postprocess):
            pass


def test_amounts_are_read_from_properties_and_slots_too():
    @dataclass(frozen=True, kw_only=True, slots=True)
    class Slotted(Postprocess):
        epsilon: float = parameter(2.0, doc="budget")

    class Stated(Postprocess):
        noise = "laplace"

        @property
        def rho(self):
            return NOISELESS["rho"]

    assert amounts(Slotted()) == {"epsilon": 2.0}
    assert (amounts(Stated()), noise_of(Stated())) == ({"rho": NOISELESS["rho"]}, "laplace")
