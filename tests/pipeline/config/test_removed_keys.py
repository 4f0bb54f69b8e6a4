"""Every key, value and plug-in that was removed: the command names the line, the key and what to use instead."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from penstock.pipeline.cli.main import main
from penstock.pipeline.config.build import REMOVED

RUN = """\
name: example
seed: 7
source: {type: csv, path: events.csv, from: 2008-05-19T00:00:00Z, until: 2008-05-20T00:00:00Z, columns: {user: cab}}
space: {type: grid, south: 37.7, north: 37.8, west: -122.5, east: -122.3, rows: 4, columns: 4}
windows: {type: fixed, size: 1h}
mechanism: [{type: laplace, epsilon: 1}]
output: {path: run}
"""
EXPERIMENT = """\
name: example
question: which?
base: run.yaml
seeds: 1
measures: [mae]
choose: {prefer: mae}
figures: [{file: a.svg, type: line, x: variant, y: mae}]
"""
FPA = {"type": "fpa", "epsilon": 1, "coefficients": 4, "block": 24}
RECONSTRUCTION = {"type": "reconstruction", "horizon": 4, "tolerance": 1, "targets": 4, "prior": {"file": "prior.npz"}}

KAFKA = {"type": "kafka", "brokers": "localhost:9092", "topic": "events"}
PUBSUB = {"type": "pubsub", "subscription": "projects/city-1/subscriptions/events"}

OF_EXPERIMENTS = ("zip", "published", "differences", "tables", "study", "choose", "figures", "confidence")
#: By what was removed: the key of the document that is changed, its value, and the path that the message names.
WRITTEN: dict[str, tuple[str, Any, str]] = {
    "accountant temporal.method": ("accountants", [{"type": "temporal", "method": "sound"}], "accountants[0].method"),
    "accountant conditional_inferential.interval": (
        *("accountants", [{"type": "conditional_inferential", "interval": "1h"}], "accountants[0].interval"),
    ),
    "accountant temporal.correlation.stationary": (
        "accountants",
        [{"type": "temporal", "correlation": {"chain": {}, "stationary": False}}],
        "accountants[0].correlation",
    ),
    "accountants.classes.correlation.stationary": (
        "accountants",
        [{"type": "temporal", "classes": [{"name": "a", "correlation": {"stationary": False}}]}],
        "accountants[0].classes[0].correlation.stationary",
    ),
    "accountant crowd_blending.epsilon": (
        *("accountants", [{"type": "crowd_blending", "epsilon": 1.0}], "accountants[0].epsilon"),
    ),
    "accountant temporal.longest_gap": (
        *("accountants", [{"type": "temporal", "longest_gap": 20}], "accountants[0].longest_gap"),
    ),
    "accountant temporal.bridged_states": (
        *("accountants", [{"type": "temporal", "bridged_states": 9}], "accountants[0].bridged_states"),
    ),
    "accountant reconstruction.segment": ("accountants", [RECONSTRUCTION | {"segment": 4}], "accountants[0].segment"),
    "accountant reconstruction.n_samples": (
        *("accountants", [RECONSTRUCTION | {"n_samples": 9}], "accountants[0].n_samples"),
    ),
    "mechanism fpa.calibration": ("mechanism", [FPA | {"calibration": "paper"}], "mechanism[0].calibration"),
    "mechanism fpa.choice": ("mechanism", [FPA | {"choice": "first"}], "mechanism[0].choice"),
    "mechanism fpa.measured_sensitivity": (
        *("mechanism", [FPA | {"measured_sensitivity": True}], "mechanism[0].measured_sensitivity"),
    ),
    "mechanism fpa.transform": ("mechanism", [FPA | {"transform": "padded"}], "mechanism[0].transform"),
    "mechanism spatial_generalization.spread": (
        *("mechanism", [{"type": "spatial_generalization", "spread": "even"}], "mechanism[0].spread"),
    ),
    "mechanism temporal_generalization.spread": (
        *("mechanism", [{"type": "temporal_generalization", "windows": 2, "spread": "copy"}], "mechanism[0].spread"),
    ),
    "mechanism smooth": ("mechanism", [{"type": "pegasus", "epsilon": 1}, {"type": "smooth"}], "mechanism[1].type"),
    "mechanism.epsilon.temporal_goal": (
        *("mechanism", [{"type": "laplace", "epsilon": {"temporal_goal": 1.0}}], "mechanism[0].epsilon"),
    ),
    "source kafka.format=arrow": ("source", KAFKA | {"format": "arrow"}, "source.format"),
    "source pubsub.format=arrow": ("source", PUBSUB | {"format": "arrow"}, "source.format"),
    "source kafka.dead_letter_content": (
        "source",
        KAFKA | {"dead_letter_content": True},
        "source.dead_letter_content",
    ),
    "source kafka.clock": ("source", KAFKA | {"clock": True}, "source.clock"),
    "source synthetic.disorder": ("source", {"type": "synthetic", "disorder": "10m"}, "source.disorder"),
    "window sliding": ("windows", {"type": "sliding", "size": "1h", "period": "30m"}, "windows.type"),
    "streams": ("streams", [{"name": "north"}], "streams"),
    "output.rejects_key": ("output", {"path": "run", "rejects_key": "key.pem"}, "output.rejects_key"),
    "output.rejects": ("output", {"path": "run", "rejects": "sealed"}, "output.rejects"),
    "output.bigquery": ("output", {"path": "run", "bigquery": {"table": "a.b.c"}}, "output.bigquery"),
    "landmarks.drawn.shape": (*("landmarks", {"drawn": {"share": 0.5, "shape": "uniform"}}, "landmarks.drawn.shape"),),
    "zip": ("zip", {"seed": [1, 2]}, "zip"),
    "published": ("published", [{"source": "table 1"}], "published"),
    "differences": ("differences", [{"why": "unknown"}], "differences"),
    "tables": ("tables", [{"rows": "variant"}], "tables"),
    "study": ("study", "module:function", "study"),
    "confidence": ("confidence", 0.9, "confidence"),
    "figures.title": (
        *("figures", [{"file": "a.svg", "type": "line", "x": "a", "y": "mae", "title": "A"}], "figures[0].title"),
    ),
    "choose.judge_by": ("choose", {"prefer": "mae", "judge_by": "mean"}, "choose.judge_by"),
    "figures.type=heat_map": (
        *("figures", [{"file": "a.svg", "type": "heat_map", "x": "variant", "y": "mae"}], "figures[0].type"),
    ),
    "figures.value": (
        *("figures", [{"file": "a.svg", "type": "line", "x": "a", "y": "mae", "value": "mae"}], "figures[0].value"),
    ),
}


def command_for(removed: str) -> list[str]:
    """The command that reads the document in which a key was."""
    is_experiment = WRITTEN[removed][0] in OF_EXPERIMENTS
    return ["experiment", "experiment.yaml"] if is_experiment else ["validate", "run.yaml"]


@pytest.mark.parametrize("removed", REMOVED)
def test_the_command_says_what_to_use_instead(
    removed: str, tmp_path: Path, working_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("events.csv").write_text("cab,time,latitude,longitude\nx,2008-05-19T01:00:00Z,37.75,-122.4\n")
    Path("run.yaml").write_text(RUN)
    Path("experiment.yaml").write_text(EXPERIMENT)
    command, file = command_for(removed)
    key, value, path = WRITTEN[removed]
    document = yaml.safe_load(Path(file).read_text()) | {key: value}
    Path(file).write_text(yaml.safe_dump(document, sort_keys=False))
    assert main([command, file]) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "was removed; " in line]
    where = re.match(rf"penstock: {file}:(\d+): {re.escape(path)}", line)
    assert where is not None
    # The line of the key, or of the section that held it.
    lines, first = Path(file).read_text().splitlines(), int(where[1]) - 1
    assert re.split("[ .=]", removed)[-1] in "\n".join(lines[first : first + 2])
    assert line.endswith(f"was removed; {REMOVED[removed]}")
