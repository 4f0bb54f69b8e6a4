"""The command line: output, exit codes, and usage errors."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path

import polars as pl
import pytest

import penstock
from penstock.pipeline.cli.main import main

CONFIGURATION = """
name: cli
seed: 1
source: {{type: synthetic, n_users: 50, days: 1, from: 2024-01-01T00:00:00Z, rows: 2, columns: 2}}
space: {{type: grid, south: 37.74, north: 37.82, west: -122.47, east: -122.37, rows: 2, columns: 2}}
windows: {{type: fixed, size: 6h}}
bounding: {{max_cells: 1}}
mechanism: {{type: discrete_laplace, epsilon: 1.0}}
accountants: [{{type: landmark_budget, budget: {budget}}}]
utility: [mae]
output: {{path: {out}}}
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "cli.yaml"
    path.write_text(CONFIGURATION.format(out=tmp_path / "out", budget=10))
    return str(path)


def test_run_names_the_files_to_open(config, tmp_path, capsys):
    assert main(["run", config]) == 0
    shown = capsys.readouterr()
    assert str(tmp_path / "out" / "public" / "releases.parquet") in shown.out
    assert "4 windows: 4 published" in shown.out
    assert shown.err == ""


def test_run_speaks_json(config, capsys):
    assert main(["run", config, "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert actual["exit_code"] == 0
    assert actual["rows"]["rows"] == actual["rows"]["used"] + actual["rows"]["out_of_area"]


def test_out_and_set_change_the_run(config, tmp_path, capsys):
    other = tmp_path / "elsewhere"
    assert main(["run", config, "--out", str(other), "--set", "mechanism.epsilon=0.5", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert pl.read_parquet(other / "public" / "releases.parquet")["epsilon"].unique().to_list() == [0.5]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["run", "experiment", "choose"])
def test_a_missing_file_is_the_only_thing_said(command, capsys):
    assert main([command, "nothere.yaml"]) == 2
    message = capsys.readouterr()
    wrong = "nothere.yaml: cannot be read (No such file or directory); it must be a YAML file"
    assert (message.out, message.err) == ("", f"penstock: {wrong}\n")


def test_the_file_of_another_command_is_told_in_one_sentence(config, tmp_path, capsys):
    assert main(["experiment", config]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert f"{config}: is the configuration of a run, not an experiment: penstock run {config};" in message
    assert "base: cli.yaml" in message
    for key in ("base: cli.yaml", "study: {type: exposure}"):
        other = tmp_path / "sweep.yaml"
        other.write_text(f"name: x\nquestion: which\nmeasures: [mae]\n{key}\n")
        assert main(["run", str(other)]) == 2
        wrong = f"{other}: is an experiment, not the configuration of a run: penstock experiment {other}"
        assert capsys.readouterr().err == f"penstock: {wrong}\n"


def test_quiet_leaves_errors(config, tmp_path, capsys):
    assert main(["run", config, "-q"]) == 0
    message = capsys.readouterr()
    assert (message.out, message.err) == ("", "")
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text(f"name: x\nquestion: which\nmeasures: [mae]\nbase: {config}\n")
    assert main(["experiment", str(sweep), "-q", "--jobs", "1", "--out", str(tmp_path / "sweep")]) == 0
    assert capsys.readouterr().out == ""
    for command in ("run", "experiment", "choose"):
        assert main([command, "nothere.yaml", "-q"]) == 2
        assert "nothere.yaml: cannot be read" in capsys.readouterr().err


def test_a_budget_ends_a_run_with_exit_code_3(tmp_path, capsys):
    path = tmp_path / "cli.yaml"
    path.write_text(CONFIGURATION.format(out=tmp_path / "out", budget=0.5))
    assert main(["run", str(path)]) == 3
    assert "STOPPED" in capsys.readouterr().out


def test_a_wrong_configuration_is_exit_code_2_and_one_line_a_problem(config, tmp_path, capsys):
    assert main(["validate", config, "--set", "mechanism.epsilon=-1", "--set", "windows.sise=1h"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("penstock: --set") for line in lines)
    assert main(["validate", str(tmp_path / "none.yaml"), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


def test_validate_runs_nothing(config, tmp_path, capsys):
    assert main(["validate", config]) == 0
    assert "valid" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["run"], ["frobnicate"], ["list", "everything"]])
def test_wrong_words_are_exit_code_2(words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "usage: penstock" in capsys.readouterr().err


def test_missing_input_is_a_message_not_a_traceback(config, tmp_path, capsys):
    code = main(["run", config, "--set", "source={type: csv, path: nowhere.csv}"])
    assert code == 2
    assert "nowhere.csv" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["list"], ["list", "mechanisms", "--markdown"], ["list", "--json"]])
def test_list_knows_every_mechanism(words, capsys):
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "landmark_uniform" in shown
    assert "raw" in shown


@pytest.mark.parametrize(
    ("words", "offered"),
    [("le", "learn ledger"), ("run --resu", "--resume"), ("init --epsi", "--epsilon-per-day"), ("run configs/", "")],
)
def test_bash_completes_commands_and_options(capsys, words, offered):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out + f"\nCOMP_WORDS=(penstock {words}); COMP_CWORD={len(words.split())}; _penstock"
    shell = subprocess.run(
        ["bash", "-c", script + '; echo "${COMPREPLY[@]}"'], capture_output=True, text=True, check=True
    )
    assert shell.stdout.strip() == offered


def test_fish_completes_every_option(capsys):
    assert main(["completion", "fish"]) == 0
    assert "complete -c penstock -n '__fish_seen_subcommand_from run' -l resume" in capsys.readouterr().out


def test_schema_is_json(capsys):
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["$schema"].startswith("https://json-schema.org/draft/2020-12")


def test_generate_then_run_from_parquet(tmp_path, capsys):
    target = tmp_path / "city.parquet"
    assert main(["generate", str(target), "--set", "n_users=20", "--set", "days=1"]) == 0
    assert "n_events" in capsys.readouterr().out
    assert pl.read_parquet(target).columns == ["user", "time", "latitude", "longitude", "place"]


def test_convert_keeps_every_event(tmp_path, capsys):
    (tmp_path / "cabs").mkdir()
    (tmp_path / "cabs" / "new_a.txt").write_text("37.75 -122.4 0 1211155201\n37.76 -122.41 1 1211155301\n")
    assert main(["convert", "cabspotting", str(tmp_path / "cabs"), str(tmp_path / "cabs.parquet"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["n_events"] == 2
    assert pl.read_parquet(tmp_path / "cabs.parquet")["latitude"].to_list() == [37.75, 37.76]


def test_verify_accepts_a_run_and_notices_what_was_changed(config, tmp_path, capsys):
    main(["run", config, "--quiet"])
    folder = tmp_path / "out"
    assert main(["verify", str(folder)]) == 0
    assert "WRONG" not in capsys.readouterr().out
    ledger = folder / "operator" / "ledger"
    whole = ledger.read_text()
    ledger.write_text("".join(whole.splitlines(keepends=True)[1:]))
    assert main(["verify", str(folder)]) == 1
    assert "WRONG  ledger" in capsys.readouterr().out
    ledger.write_text(whole)
    manifest = folder / "operator" / "manifest.json"
    changed = json.loads(manifest.read_text())
    changed["rows"]["used"] += 1
    manifest.write_text(json.dumps(changed))
    assert main(["verify", str(folder)]) == 1
    assert "WRONG  row equation" in capsys.readouterr().out


def test_verify_notices_a_missing_window_and_another_configuration(config, tmp_path, capsys):
    main(["run", config, "--quiet"])
    folder = tmp_path / "out"
    releases = folder / "public" / "releases.parquet"
    frame = pl.read_parquet(releases)
    frame.filter(pl.col("window") != 2).write_parquet(releases)
    manifest = folder / "operator" / "manifest.json"
    changed = json.loads(manifest.read_text())
    changed["configuration"]["mechanism"][0]["epsilon"] = 9.0
    manifest.write_text(json.dumps(changed))
    assert main(["verify", str(folder), "--json"]) == 1
    wrong = {check["name"] for check in json.loads(capsys.readouterr().out) if not check["passed"]}
    assert {"windows", "configuration digest"} <= wrong


def test_verify_of_no_run_says_so(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 1
    assert "no finished run here" in capsys.readouterr().err


def test_a_new_key_is_for_its_owner_only(tmp_path, capsys):
    path = tmp_path / "key"
    assert main(["key", "new", str(path)]) == 0
    assert path.stat().st_mode & 0o077 == 0
    assert path.read_text() not in capsys.readouterr().out


def test_the_summary_says_what_the_release_is_worth(config, capsys):
    assert main(["run", config, "--set", "utility=[mre]"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (worth,) = (line for line in lines if line.startswith("utility   Wrong"))
    assert "people on average where" in worth
    assert any(line.startswith("utility   mre ") and line.endswith("(as in Pyrgelis et al. 2020)") for line in lines)


def test_a_simulation_measures_what_everybody_understands(config, capsys):
    text = Path(config).read_text().replace("utility: [mae]\n", "")
    Path(config).write_text(text)
    assert main(["run", config, "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert set(actual["utility"]) == {"mae", "relative_mae", "variance_explained", "skill", "skill_last"}


@pytest.mark.parametrize(
    ("terminal", "environment", "coloured"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_warnings_are_in_colour_on_a_terminal_by_default(capsys, monkeypatch, terminal, environment, coloured):
    from penstock.pipeline.cli.command import print_lines

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
    print_lines("read      CAUTION\nCAUTION   look")
    shown = "\033[33mCAUTION\033[0m" if coloured else "CAUTION"
    assert capsys.readouterr().out == f"read      CAUTION\n{shown}   look\n"


@pytest.mark.parametrize("output", ["", "output: {report: false}\n"])
def test_out_stands_for_the_folder_that_a_configuration_lacks(config, tmp_path, capsys, output):
    path = Path(config)
    path.write_text(path.read_text().partition("output:")[0] + output)
    assert main(["run", config]) == 2
    assert "cli.yaml" in capsys.readouterr().err
    folder = tmp_path / "a: #b"
    assert main(["run", config, "--out", str(folder), "--runner", "local", "--quiet"]) == 0
    assert (folder / "report.html").exists() != bool(output)
    assert main(["attack", config, "recovery", "--out", str(folder), "--quiet"]) == 0
    assert penstock.run(config, folder, runner="local").exit_code == 0
    assert main(["run", config, "--out", "s3://bucket/run"]) == 2
    assert "--out: output.path: 's3://bucket/run' is not allowed; it must be" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["attack", "experiment"])
def test_options_that_were_removed_say_what_to_use(command, capsys):
    with pytest.raises(SystemExit, match="2"):
        main([command, "run.yaml", "--save", "kept"])
    assert "--save was removed; " in capsys.readouterr().err


@pytest.mark.parametrize("command", [["init", "a.csv", "--out"], ["generate"]])
def test_a_file_to_write_gets_its_folder(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("a.csv").write_text("user,time,latitude,longitude\na,2024-01-01T00:10:00Z,47.5,8.5\n")
    settings = ["--set", "n_users=3", "--set", "days=1"] if command == ["generate"] else []
    assert main([*command, "made/too/file", *settings]) == 0
    assert Path("made/too/file").is_file()
    capsys.readouterr()
    for target, words in {".": "is a folder", "a.csv/file": "is a file, and a folder is needed there"}.items():
        assert main([*command, target, *settings]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"penstock: {target.removesuffix('/file')}: {words}")


def test_json_for_machines_has_no_number_that_json_has_not(capsys):
    from penstock.pipeline.cli.command import print_json

    print_json({"budget": math.inf, "rows": [(1, -math.inf, math.nan)]})
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {
        "budget": "Infinity",
        "rows": [[1, "-Infinity", None]],
    }
