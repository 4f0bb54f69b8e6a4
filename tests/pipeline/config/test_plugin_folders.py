"""Plug-ins of folders belong to the configuration that names the folder, and to no other one of the process."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from penstock.evaluation.utility import metric_called, metric_names
from penstock.mechanisms import get, names
from penstock.mechanisms.core.plugin import ConfigError, PluginError, UnknownPlugin
from penstock.pipeline.config.run import loads
from penstock.pipeline.config.sections import add_folder
from penstock.pipeline.run import run
from penstock.pipeline.spaces.base import SPACES
from tests.tools.small_configuration import small_sections

STEP = """
from dataclasses import dataclass
from penstock.mechanisms.core.contract import Postprocess

@dataclass(frozen=True, kw_only=True)
class CLASS(Postprocess):
    def transform(self, values):
        return values + NUMBER
"""
METRIC = """
from penstock.evaluation.utility import metric

@metric("NAME", "window", higher_is_better=False)
def NAME(truth, released):
    "Mean difference."
    return (released - truth).mean(1)
"""
SPACE = """
from dataclasses import dataclass
from penstock.pipeline.spaces.places import Places

@dataclass(frozen=True, kw_only=True)
class CLASS(Places):
    pass
"""
EVENTS = [(f"user{n}", f"2024-01-01T0{n % 6}:30:00+00:00", "abc"[n % 3]) for n in range(60)]


def plugins(folder: Path, word: str, number: int) -> Path:
    """A folder with a step, a metric and a space, called by a word that no other test uses: modules stay loaded."""
    made = {"mechanisms": (f"{word}_up", STEP), "metrics": (f"{word}_bias", METRIC), "spaces": (f"{word}_town", SPACE)}
    for kind, (name, text) in made.items():
        path = folder / kind / f"{name}.py"
        path.parent.mkdir(parents=True)
        as_class = "".join(part.capitalize() for part in name.split("_"))
        path.write_text(text.replace("CLASS", as_class).replace("NAME", name).replace("NUMBER", str(number)))
    return folder


def text_of(folder: Path, word: str, **changes) -> str:
    """A configuration that uses all plug-ins called by a word."""
    folder.mkdir(exist_ok=True)
    sections = small_sections(folder, EVENTS, utility=["mae", f"{word}_bias"], accountants=[], **changes)
    sections["mechanism"] = [{"type": "raw"}, {"type": f"{word}_up"}]
    del sections["landmarks"]
    sections["space"] = {"type": f"{word}_town", "list": ["a", "b", "c"]}
    return json.dumps(sections)


def test_another_configuration_does_not_see_them(tmp_path):
    folder = plugins(tmp_path / "plugins", "alder", 5)
    config = loads(text_of(tmp_path / "one", "alder", plugins=[str(folder)]))
    assert "alder_up" in names()
    with pytest.raises(ConfigError) as caught:
        loads(text_of(tmp_path / "other", "alder"))
    for key, name in (("mechanism[1].type", "alder_up"), ("space.type", "alder_town"), ("utility[1]", "alder_bias")):
        assert any(f"{key}: '{name}' is not" in problem for problem in caught.value.problems), name
    assert not [p for p in caught.value.problems if p.count("alder_") != 1]
    assert "alder_up" not in names()
    assert "alder_town" not in SPACES.names()
    assert "alder_bias" not in metric_names()
    assert metric_called("alder_bias") is None
    with pytest.raises(UnknownPlugin):
        get("alder_up")
    # One that was loaded runs, whatever was loaded since: Beam pickles its plug-ins, and finds them again.
    for runner in ("local", "direct"):
        result = run(config, tmp_path / runner, runner=runner)
        assert result.manifest["utility"]["alder_bias"] == 5.0
    assert loads(text_of(tmp_path / "again", "alder", plugins=[str(folder)])).mechanism == config.mechanism


def test_each_thread_has_those_of_its_configuration(tmp_path):
    loaded = Barrier(2)

    def load(word: str, other: str) -> None:
        text = text_of(tmp_path / word, word, plugins=[str(plugins(tmp_path / f"{word}_plugins", word, 1))])
        config = loads(text)
        loaded.wait(60)
        assert f"{word}_up" in names()
        assert f"{other}_up" not in names()
        assert metric_called(f"{word}_bias")
        assert metric_called(f"{other}_bias") is None
        loaded.wait(60)
        assert run(config, runner="local").manifest["utility"][f"{word}_bias"] == 1.0

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(load, "beech", "cedar"), threads.submit(load, "cedar", "beech")]:
            done.result(60)


@pytest.mark.parametrize("kind", ["mechanisms", "metrics"])
def test_two_files_of_one_name_in_one_process_are_refused(tmp_path, kind):
    word = {"mechanisms": "elm", "metrics": "fir"}[kind]
    first, second = (plugins(tmp_path / name, word, number) for name, number in (("first", 1), ("second", 2)))
    for other in {"mechanisms", "metrics", "spaces"} - {kind}:
        for path in (second / other).iterdir():
            path.unlink()
    add_folder(str(first))
    if kind == "mechanisms":
        get(f"{word}_up")
    text = text_of(tmp_path / "other", word, plugins=[str(second)])
    with pytest.raises(ConfigError) as caught:
        loads(text)
    name = f"{word}_up" if kind == "mechanisms" else f"{word}_bias"
    expected = f"{second}/{kind}/{name}.py:1: its name is that of {first}/{kind}/{name}.py"
    assert any(expected in problem for problem in caught.value.problems), caught.value
    with pytest.raises(PluginError, match="its name is that of"):
        add_folder(str(first))
