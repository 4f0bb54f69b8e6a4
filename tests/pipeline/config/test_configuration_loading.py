"""Loading of valid configurations: types, paths, overrides, plug-ins, canonical form."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from penstock import mechanisms
from penstock.mechanisms.core.plugin import Checked, ConfigError, parameter
from penstock.pipeline.config.build import FAILED, Builder
from penstock.pipeline.config.canonical import digest, resolved
from penstock.pipeline.config.kinds import format_duration, parse_duration, parse_time
from penstock.pipeline.config.run import RunConfig, load, loads
from penstock.pipeline.config.yaml import parse
from penstock.pipeline.windows.calendar import format_time
from penstock.pipeline.windows.landmarks import Landmarks

TEXT = """\
name: example
seed: 7
source:
  {type: csv, path: events.csv, from: 2008-05-19T00:00:00Z, until: 2008-05-20T00:00:00Z}
space: {type: grid, south: 37.7, north: 37.8, west: -122.5, east: -122.3, rows: 4, columns: 4}
windows: {type: fixed, size: 1h, allowed_lateness: 10m}
bounding: {max_cells: 2}
landmarks: {windows: [8, 9]}
mechanism: {type: landmark_uniform, epsilon: .inf}
accountants: {type: landmark_budget}
utility: mae
output: {path: runs/example, ledger_source: events}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, working_folder: Path) -> Path:
    (tmp_path / "events.csv").write_text("user,time,latitude,longitude\n")
    return tmp_path


@pytest.fixture
def plugin_folder(folder: Path) -> Path:
    """A folder for mechanisms."""
    inside = folder / "extra" / "mechanisms"
    inside.mkdir(parents=True)
    return inside


def test_values_have_the_types_of_the_fields() -> None:
    config = loads(TEXT)
    assert config.source.from_ == 1211155200000
    assert config.windows.size == 3_600_000
    assert config.bounding.max_cells == 2
    assert config.mode == "simulation"
    (mechanism,) = config.mechanism
    assert type(mechanism).__name__ == "LandmarkUniform"
    assert mechanism.epsilon == math.inf  # type: ignore[attr-defined]
    assert config.utility == ("mae",)
    assert isinstance(config.space.south, float)  # type: ignore[attr-defined]


def test_one_entry_stands_for_a_list_of_one() -> None:
    listed = TEXT.replace("accountants: {type: landmark_budget}", "accountants: [{type: landmark_budget}]")
    assert loads(listed) == loads(TEXT)


def test_nothing_means_none_where_none_is_allowed() -> None:
    assert loads(TEXT.replace("seed: 7", "seed:")).seed is None


def test_anchors_and_aliases_are_understood() -> None:
    text = TEXT.replace("west: -122.5", "west: &west -122.5").replace("name: example", "name: a")
    assert loads(text.replace("columns: 4", "columns: &n 4").replace("rows: 4", "rows: 4")) == loads(
        TEXT.replace("name: example", "name: a")
    )
    assert loads(TEXT.replace("rows: 4, columns: 4", "rows: &n 4, columns: *n")) == loads(TEXT)


class TestPaths:
    def test_found_from_the_working_directory_first(self, folder: Path) -> None:
        (folder / "configs").mkdir()
        (folder / "configs" / "events.csv").write_text("user,time,place\n")
        (folder / "configs" / "run.yaml").write_text(TEXT)
        assert load("configs/run.yaml").source.path == "events.csv"  # type: ignore[attr-defined]

    def test_found_beside_the_configuration_otherwise(self, folder: Path) -> None:
        (folder / "configs").mkdir()
        (folder / "events.csv").rename(folder / "configs" / "events.csv")
        (folder / "configs" / "run.yaml").write_text(TEXT)
        actual = load(Path("configs/run.yaml")).source.path  # type: ignore[attr-defined]
        assert Path(actual).samefile(folder / "configs" / "events.csv")

    def test_a_pattern_needs_a_match(self) -> None:
        assert loads(TEXT.replace("path: events.csv", "path: '*.csv'")).source.path == "*.csv"  # type: ignore[attr-defined]

    def test_a_key_may_be_an_environment_variable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PENSTOCK_TEST_KEY", "00" * 32)
        text = TEXT.replace("seed: 7", "mode: deployment\nnoise_key: env:PENSTOCK_TEST_KEY").replace("utility: mae", "")
        text = text.replace("epsilon: .inf", "epsilon: 1")
        assert loads(text).noise_key == "env:PENSTOCK_TEST_KEY"


class TestOverrides:
    @pytest.mark.parametrize(
        ("override", "path", "value"),
        [
            ("seed=8", ("seed",), 8),
            ("name=other", ("name",), "other"),
            ("mechanism[0].epsilon=0.5", ("mechanism", 0, "epsilon"), 0.5),
            ("mechanism.0.epsilon=0.5", ("mechanism", 0, "epsilon"), 0.5),
            ("mechanism.epsilon=0.5", ("mechanism", 0, "epsilon"), 0.5),
            ("bounding.max_cells=3", ("bounding", "max_cells"), 3),
            ("sensors.active=all", ("sensors", "active"), "all"),
            ("landmarks.windows[2]=10", ("landmarks", "windows"), [8, 9, 10]),
            ("landmarks.recurring[0]=07:00-09:00", ("landmarks", "recurring"), ["07:00-09:00"]),
            ("landmarks={windows: [3]}", ("landmarks", "windows"), [3]),
            ("utility=[mae, mre]", ("utility",), ["mae", "mre"]),
            ("windows.size=30m", ("windows", "size"), "30m"),
            ("source.until=2008-05-21T00:00:00Z", ("source", "until"), "2008-05-21T00:00:00Z"),
        ],
    )
    def test_applied(self, override: str, path: tuple[str | int, ...], value: Any) -> None:
        actual: Any = resolved(loads(TEXT, overrides=[override]), secrets=True)
        for step in path:
            actual = actual[step]
        assert actual == value

    def test_the_last_one_counts(self) -> None:
        assert loads(TEXT, overrides=["seed=1", "seed=2"]).seed == 2

    def test_an_empty_override_removes_a_key(self) -> None:
        text = TEXT.replace("mechanism: {type: landmark_uniform, epsilon: .inf}", "mechanism: {type: raw}")
        assert loads(text, overrides=["landmarks="]).landmarks is None
        assert loads(TEXT, overrides=["bounding.max_cells="]).bounding.max_cells is None
        assert loads(TEXT, overrides=["landmarks.windows[0]="]).landmarks == Landmarks(windows=(9,))
        assert loads(TEXT, overrides=["accountants="]).accountants == ()
        with pytest.raises(ConfigError, match=r"^--set mechanism.tau=: mechanism.tau: is not there, and so cannot"):
            loads(TEXT, overrides=["mechanism.tau="])

    def test_a_section_may_be_made(self) -> None:
        text = TEXT.replace("bounding: {max_cells: 2}\n", "").replace("accountants: {type: landmark_budget}\n", "")
        config = loads(text, overrides=["bounding.max_cells=2", "accountants[0].type=landmark_budget"])
        assert config == loads(TEXT)

    @pytest.mark.parametrize("form", ["mechanism[0].epsilon", "mechanism.0.epsilon"])
    def test_a_step_of_several_is_set_in_the_form_that_the_error_names(self, form: str) -> None:
        text = TEXT.replace("mechanism: {", "mechanism: [{").replace("epsilon: .inf}", "epsilon: 3}, {type: filter}]")
        with pytest.raises(ConfigError, match=r"is a list; say which entry, for instance mechanism\[0\]\.epsilon$"):
            loads(text, overrides=["mechanism.epsilon=2"])
        assert loads(text, overrides=[f"{form}=2"]).mechanism[0].epsilon == 2  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        ("override", "expected"),
        [
            ("mechanism[0].epsilon=-1", "mechanism.epsilon: -1 is not allowed; it must be a number above 0 (nats)"),
            ("seed", "must be written key.path=value, for instance mechanism[0].epsilon=0.5"),
            ("=5", "must be written key.path=value, for instance mechanism[0].epsilon=0.5"),
            ("a..b=5", "must be written key.path=value, for instance mechanism[0].epsilon=0.5"),
            ("seed=[1", "not valid YAML: expected ',' or ']', but got '<stream end>'"),
            ("seed.value=5", "seed: is a single value; seed.value cannot be set"),
            (
                "landmarks.windows[5]=10",
                "landmarks.windows: has 2 entries; the index must be 0 to 1, or 2 to add one",
            ),
            (
                "landmarks.windows.first=10",
                "landmarks.windows: is a list; say which entry, for instance landmarks.windows[0].first",
            ),
            (
                "bounding.max_cell=3",
                "bounding.max_cell: unknown key; did you mean 'max_cells'? "
                "(known: max_cells, keep, max_windows, max_block_cells, max_per_period, pace)",
            ),
        ],
    )
    def test_problems_name_the_argument(self, override: str, expected: str) -> None:
        with pytest.raises(ConfigError) as caught:
            loads(TEXT, overrides=[override])
        assert caught.value.problems == (f"--set {override}: {expected}",)


class TestPlugins:
    def test_a_folder_brings_further_ones(self, plugin_folder: Path) -> None:
        source = Path(mechanisms.__path__[0], "raw.py").read_text().replace("class Raw(", "class RawAgain(")
        (plugin_folder / "raw_again.py").write_text(source.replace("Raw()", "RawAgain()"))
        text = TEXT.replace("{type: landmark_uniform, epsilon: .inf}", "{type: raw_again}") + "plugins: extra\n"
        config = loads(text)
        assert type(config.mechanism[0]).__name__ == "RawAgain"
        assert resolved(config)["mechanism"] == [{"type": "raw_again"}]

    def test_a_broken_file_is_a_problem_of_its_type(self, plugin_folder: Path) -> None:
        (plugin_folder / "broken_on_purpose.py").write_text("import nothing_of_this_name\n")
        with pytest.raises(ConfigError) as caught:
            loads(TEXT.replace("landmark_uniform", "broken_on_purpose") + "plugins: extra\n")
        assert caught.value.problems == (
            "<string>:9: mechanism.type: 'broken_on_purpose' cannot be loaded: "
            f"{plugin_folder}/broken_on_purpose.py:1: ModuleNotFoundError: No module named 'nothing_of_this_name'; "
            "install nothing_of_this_name, or mend the import",
        )


class TestCanonicalForm:
    def test_it_is_read_back_as_the_same_configuration(self) -> None:
        config = loads(TEXT)
        assert loads(yaml.safe_dump(resolved(config, secrets=True))) == config
        assert loads(json.dumps(resolved(config, secrets=True))) == config

    def test_it_is_strict_json_without_secrets(self) -> None:
        values = resolved(loads(TEXT))
        assert "seed" not in values
        assert "noise_key" not in values
        assert json.dumps(values, allow_nan=False) == json.dumps(values, sort_keys=True)

    @pytest.mark.parametrize(
        "override",
        [
            "name=other",
            "seed=8",
            "accountants=[]",
            "utility=[mae, mre]",
            "output.path=elsewhere",
            "output.user_summaries=false",
            "source.block_rows=10",
            "source.path=shuffled.csv",
            "source.columns.user=cab",
            "on_exhausted=repeat",
        ],
    )
    def test_the_digest_leaves_out_what_changes_no_value(self, folder: Path, override: str) -> None:
        (folder / "shuffled.csv").write_text("cab,time,latitude,longitude\n")
        assert digest(loads(TEXT, overrides=[override])) == digest(loads(TEXT))

    @pytest.mark.parametrize(
        "override",
        [
            "source.from=2008-05-19T01:00:00Z",
            "source.until=2008-05-20T01:00:00Z",
            "space.rows=5",
            "windows.size=2h",
            "sensors.active=one_random",
            "bounding.max_cells=1",
            "bounding.keep=first",
            "landmarks.windows=[8]",
            "mechanism.epsilon=1",
            "mechanism.type=laplace",
            "budget_period=12h",
        ],
    )
    def test_the_digest_holds_what_changes_values(self, override: str) -> None:
        assert digest(loads(TEXT, overrides=[override])) != digest(loads(TEXT))

    def test_the_digest_does_not_see_how_it_was_written(self) -> None:
        text = TEXT.replace("1h", "60m").replace("{max_cells: 2}", "{keep: hash, max_cells: 2}")
        assert digest(loads(text.replace("-122.5", "-1.225e2"))) == digest(loads(TEXT))

    def test_the_digest_sees_the_content_of_files_and_not_their_names(self, folder: Path) -> None:
        def with_places(name: str, content: str) -> bytes:
            (folder / name).write_text(content)
            return digest(loads(TEXT, overrides=[f"space={{type: places, file: {name}}}"]))

        first = with_places("a.txt", "x\ny\n")
        assert with_places("a.txt", "x\nz\n") != first
        (folder / "elsewhere").mkdir()
        assert with_places("elsewhere/a.txt", "x\ny\n") == first

    def test_two_deployments_on_different_sources_never_share_noise(self, folder: Path) -> None:
        (folder / "other.csv").write_text("user,time,latitude,longitude\n")
        (folder / "key").write_text("00" * 32)
        text = TEXT.replace("seed: 7", "mode: deployment\nnoise_key: key").replace("utility: mae", "")
        text = text.replace("epsilon: .inf", "epsilon: 1")
        assert digest(loads(text)) != digest(loads(text, overrides=["source.path=other.csv"]))
        assert digest(loads(text)) == digest(loads(text, overrides=["source.block_rows=10"]))


@dataclass(frozen=True, kw_only=True)
class Inner(Checked):
    limit: float | Literal["auto"] = parameter("auto", doc="a number or a word")
    pair: tuple[float, float] | None = parameter(None, doc="exactly two")


@dataclass(frozen=True, kw_only=True)
class Outer(Checked):
    inner: Inner | None = parameter(None, doc="a section")
    either: Inner | str = parameter("none", doc="a section or text")
    periods: tuple[int, ...] = parameter((), kind="duration", doc="several durations")
    home: Path | None = parameter(None, kind="output", doc="a path")
    anything: Any = parameter(None, doc="whatever")


class TestBuilder:
    @staticmethod
    def build(text: str) -> tuple[Any, list[str]]:
        node, _ = parse(text, "x.yaml")
        assert node is not None
        builder = Builder({}, None)
        built = builder.section(node, Outer, ())
        return built, [str(problem) for problem in builder.problems]

    @pytest.mark.parametrize(
        ("text", "field", "value"),
        [
            ("inner: {limit: 2}", "inner", Inner(limit=2.0)),
            ("inner: {limit: auto}", "inner", Inner()),
            ("inner: {pair: [1, 2]}", "inner", Inner(pair=(1.0, 2.0))),
            ("inner:", "inner", None),
            ("either: text", "either", "text"),
            ("either: {limit: 1}", "either", Inner(limit=1.0)),
            ("periods: [1h, 90s]", "periods", (3_600_000, 90_000)),
            ("periods: 250ms", "periods", (250,)),
            ("home: a/b", "home", Path("a/b")),
            ("anything: 5", "anything", 5),
        ],
    )
    def test_unions_and_nested_types(self, text: str, field: str, value: Any) -> None:
        built, problems = self.build(text)
        assert problems == []
        assert getattr(built, field) == value

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("inner: {limit: x}", "inner.limit: 'x' is not allowed; it must be a number or one of auto"),
            ("inner: {pair: [1]}", "inner.pair: a list is not allowed; it must be a list of 2: a number, a number"),
            ("inner: {pair: [1, x]}", "inner.pair[1]: 'x' is not allowed; it must be a number"),
            ("either: {limits: 1}", "either.limits: unknown key; did you mean 'limit'? (known: limit, pair)"),
            (
                "either: [1]",
                "either: a list is not allowed; it must be a section with keys out of: limit, pair or text",
            ),
            (
                "periods: [1h, soon]",
                "periods[1]: 'soon' is not allowed; it must be a duration such as 10m, 1h30m or 7d",
            ),
        ],
    )
    def test_problems_of_unions_and_nested_types(self, text: str, expected: str) -> None:
        built, problems = self.build(text)
        assert built is FAILED
        assert problems == [f"x.yaml:1: {expected}"]


@given(st.integers(0, 10_000 * 365 * 86_400_000))
def test_durations_are_read_back(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds)) == milliseconds


@given(st.integers(-2_208_988_800_000, 13_569_465_599_999))
def test_times_are_read_back(milliseconds: int) -> None:
    assert parse_time(format_time(milliseconds)) == milliseconds


def test_a_configuration_can_be_changed_in_a_program() -> None:
    config: RunConfig = replace(loads(TEXT), seed=9)
    assert config.seed == 9
