"""`penstock.testing` on plug-ins in a folder of their own, by pytest and without it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from penstock.mechanisms.core.plugin import UnknownPlugin
from penstock.mechanisms.suppress_small import SuppressSmall
from penstock.testing import failed_checks, mechanism_cases

SOUND = '''
"""Noise on every count."""

from dataclasses import dataclass
from typing import ClassVar

from penstock.mechanisms.core.contract import Mechanism, Release
from penstock.mechanisms.core.events import Additive
from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.plugin import parameter


@dataclass(frozen=True, kw_only=True)
class NAME(Mechanism):
    """Add integer noise to every count.

    **Privacy.** epsilon-differential privacy; unit: one window of one user; neighbours add or remove it. Dwork and Roth
    2014, theorem 3.6.
    """

    epsilon: float = parameter(doc="budget of one window", above=0)

    @property
    def guarantee(self):
        return Guarantee(measure="epsilon", amount=self.epsilon, theorem="Dwork and Roth 2014, theorem 3.6")

    def start(self, facts):
        return {"sensitivity": facts.constant(float(facts.sensitivity))}

    def step(self, window, counts, state, noise):
        [event] = self.worst_charge(window, state)
        values = counts + noise.discrete_laplace(event.scale, counts.shape)
        return [Release.of(window, values, (event,), noise="discrete_laplace", scale=event.scale)], state

    def worst_charge(self, window, state):
        l1 = float(state["sensitivity"].max())
        return (Additive("discrete_laplace", l1, l1 / self.epsilon),)
'''
#: Names of plug-ins, what is replaced in them, and the checks that see it.
PLUGINS = {
    "sound": ("", "", set()),
    "half_the_noise": ("noise.discrete_laplace(event.scale,", "noise.discrete_laplace(event.scale / 2,", {
        "noise_has_the_declared_scale", "every_draw_is_charged_and_every_charge_is_drawn"}),
    "half_the_charge": ('"discrete_laplace", l1,', '"discrete_laplace", l1 / 2,', {
        "charges_cover_the_noise", "every_draw_is_charged_and_every_charge_is_drawn"}),
    "of_its_own": ("noise.discrete_laplace(event.scale, counts.shape)",
                   "__import__('numpy').random.default_rng().integers(-9, 9, counts.shape)", None),
}  # fmt: skip
TEST = """
import pytest

from penstock.testing import mechanism_cases

CASES = [case for name in NAMES for case in mechanism_cases(name, "plugins")]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_plugin(case):
    case()
"""


def class_name(name):
    return "".join(part.capitalize() for part in name.split("_"))


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """A folder outside of the checkout, and what pytest says there of its plug-ins."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "plugins" / "mechanisms").mkdir(parents=True)
    for name, (old, new, _) in PLUGINS.items():
        assert old in SOUND
        text = SOUND.replace("NAME", class_name(name))
        (folder / "plugins" / "mechanisms" / f"{name}.py").write_text(text.replace(old, new) if old else text)
    (folder / "test_plugins.py").write_text(TEST.replace("NAMES", repr(list(PLUGINS))))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line", "test_plugins.py"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("name", PLUGINS)
def test_a_plugin_in_a_folder_of_its_own_keeps_its_promises_or_is_caught(outside, name):
    caught = set(re.findall(rf"^FAILED .*\[{name}-\d+-(\w+)\]", outside, re.MULTILINE))
    expected = PLUGINS[name][2]
    assert re.search(r"\d+ failed, \d+ passed", outside), outside
    if expected is None:
        assert {"a_retry_draws_the_same_noise", "replicas_equal_separate_runs"} <= caught, outside
    else:
        assert caught == expected, outside


def test_without_pytest_and_of_one_instance():
    assert failed_checks(SuppressSmall(threshold=20)) == []
    assert str(mechanism_cases(SuppressSmall(threshold=20))[0]).startswith("suppress_small-0-")


def test_a_mechanism_that_is_not_there_is_named():
    with pytest.raises(UnknownPlugin, match="did you mean 'laplace'"):
        mechanism_cases("laplase")


@pytest.mark.slow
def test_checks_that_would_check_nothing_are_refused():
    command = [sys.executable, "-O", "-c", "import penstock.testing"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "run Python without -O" in done.stderr
