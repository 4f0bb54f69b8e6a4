"""Warnings about implausible input, for the operator only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.pipeline.cli.main import main
from penstock.pipeline.reporting.page import write_report
from tests.tools.deployments import sections

HEAD = "user,time,latitude,longitude\n"
TIME, AREA = "2024-01-01T00:10:00Z", "37.75,-122.45"


def executed(folder: Path, text: str, capsys: pytest.CaptureFixture[str], **changes: dict) -> list[str]:
    """Run a deployment on a text; return the cautions of its summary, which are on the operator's page alone."""
    value = sections(folder)
    (folder / "events.csv").write_text(text)
    for key, section in changes.items():
        value[key] = section if "type" in section else value[key] | section
    path = folder / "run.json"
    path.write_text(json.dumps(value))
    assert main(["run", str(path), "--runner", "local"]) == 0
    lines = [line[10:] for line in capsys.readouterr().out.splitlines() if line.startswith("CAUTION   ")]
    private, public = (page.read_text() for page in write_report(folder / "out"))
    doubts = json.loads((folder / "out" / "operator" / "manifest.json").read_text()).get("doubts", [])
    assert [line for line in lines if line in doubts] == doubts
    assert "doubts" not in (folder / "out" / "public" / "manifest.json").read_text()
    assert private.count("look at the input") == len(doubts)
    assert "look at the input" not in public
    return doubts


def test_nothing_is_said_of_a_plain_input(tmp_path, capsys):
    assert executed(tmp_path, HEAD + "".join(f"u{i % 50},{TIME},{AREA}\n" for i in range(400)), capsys) == []


@pytest.mark.parametrize(
    ("user", "n", "message"),
    [
        (
            "NULL",
            4,
            "1 % of the first 400 rows have the user 'NULL': if that means that nobody is known, they are counted",
        ),
        ("NULL", 1, None),
        ("Anonymous", 4, "1 % of the first 400 rows have the user 'Anonymous': if that means that nobody is known"),
        (
            "k71x",
            60,
            "15 % of the first 400 rows are of one user, 51 times as many as of an average one: is it a person",
        ),
        ("k71x", 12, None),
        (
            "-",
            399,
            "99.8 % of the first 400 rows have the user '-': if that means that nobody is known, they are counted",
        ),
    ],
)
def test_one_user_with_too_many_rows(tmp_path, capsys, user, n, message):
    rows = [f"u{i},{TIME},{AREA}\n" for i in range(400 - n)] + [f"{user},{TIME},{AREA}\n"] * n
    doubts = executed(tmp_path, HEAD + "".join(rows), capsys)
    assert [doubt[: len(str(message))] for doubt in doubts] == ([message] if message else [])
    assert "k71x" not in " ".join(doubts)


def test_identifiers_that_a_spreadsheet_has_cut(tmp_path, capsys):
    rows = "".join(f"1.{i % 40}E+15,{TIME},{AREA}\n" for i in range(400))
    message = "100 % of the first 400 rows have users written like 1.2E+15, as spreadsheets cut long numbers"
    assert [doubt[: len(message)] for doubt in executed(tmp_path, HEAD + rows, capsys)] == [message]


def test_identifiers_that_are_written_in_two_ways(tmp_path, capsys):
    users = [*(f"A{i}" for i in range(98)), *(f"a{i} " for i in range(3)), "7", "007", "7.0"]
    doubts = executed(tmp_path, HEAD + "".join(f"{user},{TIME},{AREA}\n" for user in users), capsys)
    assert [doubt[:57] for doubt in doubts] == ["5 of 104 users are written like another but for case, bla"]


@pytest.mark.parametrize(("first", "second"), [("A", "a"), ("7", "007")])
def test_cells_that_are_written_in_two_ways(tmp_path, capsys, first, second):
    rows = [f"u{i},{TIME},{first}\n" for i in range(400)]
    space = {"type": "places", "list": [first, "B", second]}
    doubts = executed(tmp_path, "user,time,place\n" + "".join(rows), capsys, space=space, source={"columns": {}})
    assert [doubt.split(" but ")[0] for doubt in doubts] == [f"cell {second!r} is written like another"]


def test_positions_that_are_partly_swapped(tmp_path, capsys):
    # Swapped, a latitude of −122 would be out of range: here both are degrees that a latitude can be.
    space = {"south": 47.3, "north": 47.4, "west": 8.5, "east": 8.6}
    rows = [f"u{i},{TIME},{'8.55,47.35' if i % 4 == 0 else '47.35,8.55'}\n" for i in range(400)]
    doubts = executed(tmp_path, HEAD + "".join(rows), capsys, space=space)
    cure = "Latitude and longitude are probably swapped: exchange them in those rows of the file."
    assert doubts == [f"25 % of the first 400 rows are in no cell. {cure}"]


def test_most_visits_elsewhere(tmp_path, capsys):
    rows = [f"u{i},{TIME},{'A' if i % 4 == 0 else 'a '}\n" for i in range(400)]
    space = {"type": "places", "list": ["A", "B"], "elsewhere": True}
    doubts = executed(tmp_path, "user,time,place\n" + "".join(rows), capsys, space=space, source={"columns": {}})
    assert doubts == ["75 % of the first 400 rows are elsewhere: are the places of the space named as in the input?"]


@pytest.mark.parametrize(("offset", "is_said"), [("", True), ("+01:00", False)])
def test_local_times_in_a_run_that_clocks_are_set_back_in(tmp_path, capsys, offset, is_said):
    rows = [f"u{i},2024-10-27T02:{i % 60:02d}:00{offset},{AREA}\n" for i in range(400)]
    source = {"from": "2024-10-26T22:00:00Z", "until": "2024-10-27T23:00:00Z", "time_zone": "Europe/Zurich"}
    doubts = executed(tmp_path, HEAD + "".join(rows), capsys, source=source)
    message = "clocks were set back in Europe/Zurich on 2024-10-27, and times have no offset: 60 minutes happened twice"
    assert [doubt[: len(message)] for doubt in doubts] == ([message] if is_said else [])


def test_local_times_that_never_existed(tmp_path, capsys):
    rows = [f"u{i % 50},2024-03-31T0{1 + (i < 5)}:{i % 60:02d}:00,{AREA}\n" for i in range(400)]
    source = {"from": "2024-03-30T23:00:00Z", "until": "2024-03-31T22:00:00Z", "time_zone": "Europe/Zurich"}
    doubts = executed(tmp_path, HEAD + "".join(rows), capsys, source=source)
    assert doubts == ["5 rows are rejected for local times that never existed: is source.time_zone right?"]
