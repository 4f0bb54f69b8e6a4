"""``penstock plan``: the printed line, written into the configuration, keeps the goal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from penstock.mechanisms.core.plugin import ConfigError, ParameterError
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.goals import plan_conditional
from penstock.pipeline.config.run import loads
from tests.tools.small_configuration import run_locally as run

KNOWN = {"type": "conditional_inferential", "radius": 100, "length_scale": 1800, "variance": 4e6, "block": 100}


def sections(folder: Path, accountants: Any = (KNOWN,), **mechanism: Any) -> dict[str, Any]:
    """Ten people's traces of a made-up morning, points at least ten minutes apart."""
    return {
        "name": "traces",
        "seed": 7,
        "source": {"type": "synthetic", "n_users": 10, "from": "2024-01-01T00:00:00Z", "until": "2024-01-01T09:00:00Z"},
        "space": {"type": "grid", "south": 37.74, "north": 37.82, "west": -122.47, "east": -122.37}
        | {"rows": 3, "columns": 3},
        "windows": {"type": "timestamps", "gap": "10m"},
        "mechanism": {"type": "gaussian_trace", "sigma": 1, "radius": 100} | mechanism,
        "accountants": list(accountants),
        "output": {"path": str(folder / "out"), "report": False},
    }


@pytest.mark.parametrize("known", [{"nugget": 100.0}, {"length_scale": {"exactly": 1800}, "secrets": "every_other"}])
def test_the_conditional_line_keeps_every_secret_point_under_the_goal(tmp_path, known, capsys):
    written = sections(tmp_path, [KNOWN | known])
    (tmp_path / "run.yaml").write_text(json.dumps(written))
    assert main(["plan", str(tmp_path / "run.yaml"), "--conditional", "0.5"]) == 0
    line = capsys.readouterr().out
    assert "# of mechanism[0]: no secret point has a loss above 0.5; " in line
    shown, _, scale = line.removesuffix("\n").partition(", most lost at a length scale of ")
    assert shown.endswith(" for 100 points, 600 s apart")
    assert (float(scale) <= KNOWN["length_scale"]) if "length_scale" not in known else not scale
    result = run(loads(json.dumps(sections(tmp_path, [KNOWN | known], **yaml.safe_load(line)))))
    rows = pl.read_parquet(result.folder / "public" / "accounts.parquet").filter(pl.col("name") == "loss")
    assert 0.4 < rows["value"].max() <= 0.5 * (1 + 1e-9)  # type: ignore[operator]


def test_the_line_of_noise_on_traces_states_what_the_accountant_assumes(tmp_path):
    planned = plan_conditional(loads(json.dumps(sections(tmp_path, [KNOWN | {"nugget": 100, "order": 3}]))), 1.0)
    goal = {"goal": 1.0, "length_scale": 1800.0, "variance": 4e6, "nugget": 100.0, "order": 3.0}
    assert (planned.section, planned.key, planned.value) == ("mechanism[0]", "sigma", {"conditional_goal": goal})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accountants": []}, "accountants: a plan needs one conditional_inferential accountant, whose process is "),
        ({"accountants": [KNOWN, KNOWN | {"nugget": 9}]}, "accountants: a plan needs one conditional_inferential "),
        ({"radius": 50}, r"mechanism\[0\].radius: is 50, and 100 in accountants\[0\]; a plan needs the same in both"),
        ({"type": "planar_laplace", "epsilon": 0.1, "sigma": None, "radius": None}, "mechanism: planar_laplace cannot"),
    ],
)
def test_a_conditional_plan_that_cannot_be_made_is_refused(tmp_path, changes, message):
    value = sections(tmp_path, **changes)
    value["mechanism"] = {key: one for key, one in value["mechanism"].items() if one is not None}
    with pytest.raises(ConfigError, match=message):
        plan_conditional(loads(json.dumps(value)), 1.0)


def test_a_goal_is_a_number_above_zero(tmp_path):
    with pytest.raises(ParameterError, match="goal"):
        plan_conditional(loads(json.dumps(sections(tmp_path))), 0.0)
