"""The report: agreement with the files, in words and data, and escaping of their text."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest
import yaml

from penstock.mechanisms.core.guarantee import Guarantee
from penstock.mechanisms.core.plugin import DataError
from penstock.mechanisms.core.unit import Unit
from penstock.pipeline.cli.main import main
from penstock.pipeline.output.tables import RELEASES, TRUTH
from penstock.pipeline.reporting.accounts import figures
from penstock.pipeline.reporting.data_protection import write_statement
from penstock.pipeline.reporting.markup import pack
from penstock.pipeline.reporting.page import write_report
from tests.tools.report_pages import Text, data, page, warnings_of
from tests.tools.report_runs import account, experiment_folder, run_folder, trace_folder

DTYPES = {"i1": "i1", "i2": "<i2", "i4": "<i4", "f4": "<f4", "f8": "<f8"}


def unpack(value: dict[str, str]) -> np.ndarray:
    return np.frombuffer(zlib.decompress(base64.b64decode(value["packed"])), DTYPES[value["type"]])


def test_a_run_writes_its_report(small_run):
    result = small_run(
        [("u", "2024-01-01T00:10:00Z", "a"), ("v", "2024-01-01T02:10:00Z", "b")], output={"report": True}
    )
    text = (result.folder / "report.html").read_text(encoding="utf-8")
    shown = data(text)["counts"]
    assert shown["cells"] == ["a", "b", "c"]
    assert unpack(shown["truth"]).tolist() == [1, 0, 0, 0, 0, 0, 0, 1, 0] + [0] * 9
    assert unpack(shown["landmark"]).tolist() == [0, 1, 0, 1, 0, 0]
    words = Text(text).text
    assert "2 rows = 2 used + 0 late" in words
    losses = "By one release 1 × 2.72 73.2 % By a day 6 × 404 99.8 % By the whole run 6 × 404 99.8 %"
    assert losses in words
    assert losses in Text(write_statement(result.folder).read_text(encoding="utf-8")).text
    assert "ε-differential privacy per budget period, with ε = 3 nats" in words
    assert "unfit for publication" in words


def test_a_run_can_do_without_a_report(small_run):
    assert not (
        small_run([("u", "2024-01-01T00:10:00Z", "a")], output={"report": False}).folder / "report.html"
    ).exists()


def test_the_command_writes_it_again(small_run, capsys):
    folder = small_run([("u", "2024-01-01T00:10:00Z", "a")], output={"report": True}).folder
    before = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "report.html")
    assert (folder / "report.html").read_bytes() == before
    assert main(["report", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "report": str(folder / "report.html"),
        "pages": [str(folder / "report.html")],
    }


def test_a_folder_without_a_run_is_an_error(tmp_path, capsys):
    with pytest.raises(DataError, match="no run here"):
        write_report(tmp_path)
    assert main(["report", str(tmp_path)]) == 1
    assert "no run here" in capsys.readouterr().err


def test_counts_come_back_exactly(tmp_path):
    shown = data(page(run_folder(tmp_path, n_windows=5)))["counts"]
    truth = np.arange(1, 6)[:, None] + np.arange(4)
    assert unpack(shown["truth"]).reshape(5, 4).tolist() == truth.tolist()
    assert unpack(shown["released"]).reshape(5, 4).tolist() == (truth + 1).tolist()
    assert unpack(shown["margin"]) == pytest.approx(np.full(5, 2 * np.log(20)), rel=1e-6)


def with_releases(folder: Path, change: Any) -> tuple[Path, pl.DataFrame]:
    """A run of six windows and four cells whose releases are changed, and its releases."""
    path = run_folder(folder, n_windows=6, cells=("d", "b", "a", "c")) / "public" / "releases.parquet"
    rows = change(pl.read_parquet(path).with_columns(pl.col(pl.Categorical).cast(pl.String)))
    pq.write_table(rows.to_arrow().cast(RELEASES), path, row_group_size=5)
    return folder, rows


def with_holes(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.filter((pl.int_range(pl.len()) * 7) % 5 > 1)


def shuffled(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sample(fraction=1, shuffle=True, seed=1)


@pytest.mark.parametrize("change", [with_holes, shuffled])
def test_the_page_shows_every_row_at_its_window_and_cell(tmp_path, change):
    folder, rows = with_releases(tmp_path, change)
    shown = data(page(folder))["counts"]
    cells = shown["cells"]
    assert cells == rows["cell"].unique(maintain_order=True).to_list()
    half_width = {"laplace": 2 * np.log(20), "gaussian": 2 * 1.96}
    released, margin, truth = np.full((3, 6, len(cells)), np.nan)
    for window, cell, value, noise in rows.select("window", "cell", "value", "noise").iter_rows():
        released[window - 1, cells.index(cell)], margin[window - 1, cells.index(cell)] = value, half_width[noise]
    for column, cell in enumerate("dbac"):
        truth[:, cells.index(cell)] = np.arange(1, 7) + column
    np.testing.assert_array_equal(unpack(shown["released"]).reshape(6, -1), released)
    np.testing.assert_array_equal(unpack(shown["truth"]).reshape(6, -1), truth)
    actual = unpack(shown["margin"]).reshape(6, -1)
    np.testing.assert_allclose(actual, margin[:, :1] if actual.shape[1] == 1 else margin, rtol=1e-6)


def test_small_large_and_broken_numbers_come_back(tmp_path):
    values = np.arange(24.0)
    values[9], values[13], values[17] = 300, 70_000, 0.1
    folder, _ = with_releases(tmp_path, lambda rows: rows.with_columns(value=pl.Series(values)))
    np.testing.assert_array_equal(unpack(data(page(folder))["counts"]["released"]), values.astype("f4"))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([-128, 127], "i1"),
        ([-129, 0], "i2"),
        ([70_000.0, 1.0], "i4"),
        ([2.0**31, 0.0], "f4"),
        ([0.5, np.nan, np.inf, -np.inf], "f4"),
        ([], "i1"),
    ],
)
def test_an_array_is_packed_in_the_smallest_type_that_holds_it(values, kind):
    packed = pack(values)
    assert packed["type"] == kind
    np.testing.assert_array_equal(unpack(packed), values)


@pytest.mark.parametrize("part", ["page", "footer"])
def test_a_damaged_file_is_named(tmp_path, part):
    path = run_folder(tmp_path) / "public" / "releases.parquet"
    windows = pq.read_metadata(path).row_group(0).column(1)
    at = windows.data_page_offset if part == "page" else -12
    content = bytearray(path.read_bytes())
    content[at : at + 8] = bytes(255 - byte for byte in content[at : at + 8])
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"releases\.parquet: cannot be read"):
        write_report(tmp_path)


def test_the_configuration_at_the_foot_makes_the_same_run(small_run, tmp_path):
    folder = small_run([("u", "2024-01-01T00:10:00Z", "a")], output={"report": True}).folder
    text = page(folder)
    listing, _ = re.findall(r"<pre[^>]*>(.*?)</pre>", text, re.DOTALL)
    from html import unescape

    from penstock.pipeline.config.run import loads
    from penstock.pipeline.run import run

    configuration = unescape(listing)
    assert yaml.safe_load(configuration)["seed"] == 3
    again = run(loads(configuration), tmp_path / "again")
    assert (again.folder / "public" / "releases.parquet").read_bytes() == (
        folder / "public" / "releases.parquet"
    ).read_bytes()


EVIL = "<img src=x onerror=alert(1)>\"'&</script><script>alert(2)</script>"


def test_no_text_becomes_markup(tmp_path):
    folder = run_folder(
        tmp_path,
        cells=(EVIL, "b"),
        accounts=(account(EVIL, EVIL, 1, 0.5, subject=EVIL, unit=EVIL, adjacency=EVIL),),
        public={"name": EVIL, "notice": EVIL},
        operator={"inputs": {EVIL: EVIL}, "exit": {"code": 3, "reason": EVIL}, "versions": {EVIL: EVIL}},
        configuration={"name": EVIL, "plugins": [EVIL]},
    )
    text = page(folder)
    parsed = Text(text)
    assert "img" not in parsed.names
    assert parsed.names.count("script") == 2
    assert EVIL.replace("  ", " ") in parsed.text
    assert EVIL in data(text)["counts"]["cells"]


def test_rejected_rows_are_shown_escaped(tmp_path):
    rows = {"rows": 100, "used": 98, "duplicates": 0, "late": 0, "out_of_area": 0, "out_of_time": 0, "rejected": 2}
    folder = run_folder(tmp_path, operator={"rows": rows | {"rejected_by_reason": {"bad <b>time</b>": 2}}})
    reject = {"file": "e.csv", "line": 7, "reason": "bad <b>time</b>", "raw": "u,<b>now</b>"}
    (folder / "operator" / "rejects.jsonl").write_text(json.dumps(reject) + "\n")
    parsed = Text(page(folder))
    assert "u,<b>now</b>" in parsed.text
    assert "Caution: rejected rows." in parsed.text
    assert "b" not in parsed.names


def test_the_page_allows_only_its_own_script_and_style(tmp_path):
    text = page(run_folder(tmp_path))
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none'")
    assert "connect-src 'none'" in policy
    assert "unsafe" not in policy
    for tag, directive in (("script", "script-src"), ("style", "style-src")):
        import hashlib

        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)


def test_any_accountant_gets_a_chart_for_each_unit(tmp_path):
    rows = [account("my_own", "risk", w, 0.1 * w, unit="probability") for w in range(1, 5)]
    rows += [account("my_own", "loss", w, 1.0 * w) for w in range(1, 5)]
    charts = data(page(run_folder(tmp_path, accounts=tuple(rows))))["accounts"]
    assert [(c["title"], c["unit"], len(c["lines"])) for c in charts] == [
        ("My own, probability", "probability", 1),
        ("My own", "nats", 1),
    ]
    assert unpack(charts[1]["lines"][0]["value"])[:5] == pytest.approx([1, 2, 3, 4, np.nan], nan_ok=True)


def test_many_subjects_become_quantiles(tmp_path):
    rows = tuple(
        account("reconstruction", "bound", w, s / 100, subject=f"target {s}", unit="probability")
        for w in (1, 2)
        for s in range(101)
    )
    (chart,) = data(page(run_folder(tmp_path, operator_accounts=rows)))["accounts"]
    (line,) = chart["lines"]
    assert "median of 101" in line["label"]
    actual = [unpack(line["quantiles"][f"q{i}"])[0] for i in range(5)]
    assert actual == pytest.approx([0, 0.25, 0.5, 0.75, 1])


def test_a_final_figure_replaces_the_provisional_one(tmp_path):
    rows = (
        account("temporal", "total_loss", 1, 0.5, status="provisional", low=0.5, high=2.0),
        account("temporal", "total_loss", 1, 0.9),
        account("temporal", "total_loss", 2, 0.7),
        account("temporal", "supremum", None, 3.0),
        account("temporal", "largest_total_loss", None, 0.9),
    )
    text = page(run_folder(tmp_path, accounts=rows))
    (chart,) = data(text)["accounts"]
    assert unpack(chart["lines"][0]["value"])[:2] == pytest.approx([0.9, 0.7])
    assert [rule["value"] for rule in chart["rules"]] == [3.0]
    assert "Temporal loss if it went on for ever" in Text(text).text


def test_risks_stand_beside_what_an_adversary_has_without_the_release(tmp_path):
    rows = (
        account("reconstruction", "success_prior", 1, 0.25),
        account("reconstruction", "best_bound", 1, 0.75),
        account("membership", "membership_auc", 1, 0.625),
        account("temporal", "largest_total_loss", None, 0.875),
        account("temporal", "largest_landmark_loss", None, 4.5),
    )
    text = Text(page(run_folder(tmp_path, accounts=rows))).text
    assert "Without any release: 0.25." in text
    assert "Without any release: 0.5." in text
    assert "Largest temporal loss of all landmarks and one window" in text


def test_the_highest_end_of_all_windows_is_the_worst(tmp_path):
    rows = (
        account("temporal", "total_loss", 1, 0.9, status="provisional", low=0.9, high=1.0),
        account("temporal", "total_loss", 2, 0.5, status="provisional", low=0.5, high=2.0),
    )
    assert "0.9 to 2" in Text(page(run_folder(tmp_path, accounts=rows))).text


def test_a_reduced_experiment_says_so(tmp_path):
    assert "Note: reduced size." in warnings_of(page(experiment_folder(tmp_path, reduced=True)))


def words_of(folder: Path, promised: Guarantee) -> str:
    words = promised.words
    step = {"mechanism": "laplace", "guarantee": words.statement, "unit": words.unit, "neighbours": words.neighbours}
    step |= {"theorem": "t", "measure": promised.measure, "amount": promised.amount}
    folder.mkdir()
    return Text(page(run_folder(folder, public={"guarantee": [step]}))).text


def test_an_epsilon_is_never_said_to_be_worth_more_than_it_is(tmp_path):
    plain = words_of(tmp_path / "plain", Guarantee(measure="epsilon", amount=1.0))
    assert "knows all other data, the odds that this was in the data change by a factor of at most 2.72." in plain
    assert "can learn more" in plain
    large = words_of(tmp_path / "large", Guarantee(measure="epsilon", amount=60.0))
    assert "with ε = 60 nats" in large
    assert "promises next to nothing" in large
    assert "factor" not in large.partition("in plain words")[0]
    several = words_of(tmp_path / "w", Guarantee(unit=Unit.stretch(24), measure="epsilon", amount=1.0))
    assert "with ε = 1 nats. Protected is all of one user's events in any 24 successive windows." in several
    gaussian = words_of(tmp_path / "rho", Guarantee(measure="rho", amount=0.1, delta=1e-5))
    assert "with ρ = 0.1, hence ε = 1.915 at δ = 1e-05" in gaussian
    assert "factor" not in gaussian.partition("in plain words")[0]
    positions = words_of(tmp_path / "traces", Guarantee(measure="epsilon", amount=1.0, radius=50.0))
    assert "ε-geo-indistinguishability within 50 metres, for each point, with ε = 1 nats." in positions
    assert "factor" not in positions.partition("in plain words")[0]


def test_warnings_name_what_applies(tmp_path):
    none = {"mechanism": "raw", "guarantee": "none: x", "unit": "u", "neighbours": "n", "theorem": "none"}
    rows = (
        account("temporal", "total_loss", 1, float("inf"), status="provisional"),
        account("landmark_budget", "budget_left", 1, 0.1, status="provisional"),
        account("landmark_budget", "budget_spent", 1, 4.9, status="provisional"),
    )
    text = page(
        run_folder(
            tmp_path,
            refused=(2, 5),
            accounts=rows,
            public={"guarantee": [none], "distinct_people": False},
            operator={"exit": {"code": 3, "reason": "window 7 exceeds the budget"}},
        )
    )
    actual = warnings_of(text)
    for expected in (
        "Danger: no guarantee",
        "Danger: the run stopped early",
        "window 7 exceeds the budget",
        "Caution: rows, not people",
        "Caution: refused windows",
        "No budget was left for 2 windows (2, 5)",
        "total loss is infinite",
        "Caution: provisional figures",
        "Note: budget nearly spent",
        "Note: rows outside the area",
        "10 rows (10 %) in no cell: left out.",
    ):
        assert expected in actual
    assert actual.index("Danger") < actual.index("Caution") < actual.index("Note")
    assert "No guarantee." in Text(text).text


def test_a_step_without_a_promise_does_not_break_the_one_of_its_chain(tmp_path):
    steps = [
        {"mechanism": "sampling", "guarantee": "none: x", "unit": "u", "neighbours": "n", "theorem": "none"},
        {"mechanism": "laplace", "guarantee": "ε-DP", "unit": "u", "neighbours": "n", "theorem": "t"},
    ]
    text = page(run_folder(tmp_path, public={"guarantee": steps}))
    assert "no guarantee" not in warnings_of(text).lower()
    assert "Further steps, without a promise of their own: sampling." in Text(text).text


def test_a_sound_run_warns_of_nothing_but_being_a_simulation(tmp_path):
    rows = {"rows": 9, "used": 9, "duplicates": 0, "late": 0, "out_of_area": 0, "out_of_time": 0, "rejected": 0}
    operator = {"rows": rows | {"rejected_by_reason": {}}}
    accounts = (account("landmark_budget", "budget_left", 1, 4.0), account("landmark_budget", "budget_spent", 1, 1.0))
    actual = warnings_of(page(run_folder(tmp_path, operator=operator, accounts=accounts)))
    assert actual.count("Caution") == 1
    assert "unfit for publication" in actual
    assert "Note" not in actual
    assert "Danger" not in actual


def test_where_negative_counts_leave_the_page_proposes_the_step_that_ends_them(small_run):
    noise = {"type": "laplace", "epsilon": 0.2}

    def found(steps):
        folder = small_run(
            [("u", "2024-01-01T00:10:00Z", "a")], out=str(len(steps)), output={"report": True}, mechanism=steps
        ).folder
        least = pl.read_parquet(folder / "public" / "releases.parquet")["value"].min()
        return least, warnings_of((folder / "report.html").read_text(encoding="utf-8"))

    least, told = found([noise])
    assert least < 0
    assert "Note: negative counts. Noise makes counts negative where few people are." in told
    (proposed,) = re.findall(r"\{type: \w+\}", told)
    least, told = found([noise, yaml.safe_load(proposed)])
    assert least == 0
    assert "negative" not in told


def test_geometry_comes_from_the_published_cells(tmp_path):
    space = {"type": "grid", "south": 0, "north": 1, "west": 10, "east": 12, "rows": 1, "columns": 2}
    actual = data(page(run_folder(tmp_path, cells=("r00c00", "r00c01"), space=space)))["geometry"]
    assert [place["rings"][0][0] for place in actual] == [[10, 0], [11, 0]]


def test_a_map_needs_no_source(tmp_path):
    space = {"type": "grid", "south": 0, "north": 1, "west": 10, "east": 12, "rows": 1, "columns": 2}
    gone = {"source": {"type": "csv", "path": str(tmp_path / "gone.csv"), "columns": {"user": "u", "time": "t"}}}
    folder = run_folder(tmp_path, cells=("r00c00", "r00c01"), space=space, configuration=gone)
    assert len(data(page(folder))["geometry"]) == 2


def test_cells_without_coordinates_have_no_geometry(tmp_path):
    assert data(page(run_folder(tmp_path)))["geometry"] is None


def test_a_deployment_shows_no_truth_and_asks_for_the_key(tmp_path):
    folder = run_folder(
        tmp_path,
        truth=False,
        public={"mode": "deployment", "notice": "Released."},
        operator={"noise": {"key": "ab12"}, "utility": {}},
        configuration={"mode": "deployment"},
    )
    text = page(folder)
    assert data(text)["counts"]["truth"] is None
    assert "# add: noise_key: FILE" in text
    assert "unfit" not in Text(text).text.lower()


@pytest.mark.parametrize(("n_windows", "n_cells", "n_shown"), [(2, 2_010, 2_000), (600, 1_700, 1_666)])
def test_a_large_run_shows_its_busiest_cells_in_their_order(tmp_path, n_windows, n_cells, n_shown):
    text = page(run_folder(tmp_path, n_windows, tuple(f"cell {i}" for i in range(n_cells))))
    # Later cells are busier here.
    assert data(text)["counts"]["cells"] == [f"cell {i}" for i in range(n_cells - n_shown, n_cells)]
    truth = unpack(data(text)["counts"]["truth"]).reshape(n_windows, n_shown)
    assert truth[0].tolist() == list(range(n_cells - n_shown + 1, n_cells + 1))
    assert f"{n_shown:,} busiest of {n_cells:,} cells" in warnings_of(text)


def test_a_long_run_shows_its_latest_windows(tmp_path):
    accounts = tuple(account("my_own", "loss", w, w) for w in range(1, 20_011))
    text = page(run_folder(tmp_path, 20_010, ("a", "b"), accounts))
    shown = np.arange(11, 20_011)
    assert unpack(data(text)["counts"]["window"]).tolist() == shown.tolist()
    assert unpack(data(text)["accounts"][0]["lines"][0]["value"]).tolist() == shown.tolist()
    truth = unpack(data(text)["counts"]["truth"]).reshape(-1, 2)
    assert truth.tolist() == np.add.outer(shown, np.arange(2)).tolist()
    assert "latest 20,000 of 20,010 windows" in warnings_of(text)


def test_a_typical_page_is_small(tmp_path):
    assert len(page(run_folder(tmp_path, n_windows=504, cells=tuple(f"cell {i}" for i in range(100))))) < 300_000


def test_a_run_that_goes_on_is_provisional(tmp_path):
    folder = run_folder(tmp_path)
    (folder / "operator" / "manifest.json").unlink()
    parts = folder / "public" / "parts" / "releases"
    parts.mkdir(parents=True)
    rows = pq.read_table(folder / "public" / "releases.parquet")
    for number, first in enumerate((0, 40), 1):
        pq.write_table(rows.slice(first, 40 if first == 0 else None), parts / f"{number:012d}.parquet")
    (folder / "public" / "releases.parquet").unlink()
    text = page(folder)
    assert data(text)["over"] is False
    assert unpack(data(text)["counts"]["window"]).tolist() == list(range(1, 25))
    assert "Note: the run goes on" in warnings_of(text)


def test_before_the_first_release_there_is_a_page(tmp_path):
    folder = run_folder(tmp_path)
    (folder / "operator" / "manifest.json").unlink()
    (folder / "public" / "releases.parquet").unlink()
    text = page(folder)
    assert "counts" not in data(text)
    assert "Nothing has been released yet" in Text(text).text


def test_a_run_that_releases_traces_shows_them(tmp_path):
    text = page(trace_folder(tmp_path))
    words = Text(text).text
    assert (
        "Traces of 2 people were released point by point, under pseudonyms: 6 points, 5 published, 1 repeated." in words
    )
    assert "People: 2, each with 3 points (medians)." in words
    assert "900 metres Distance of released and true points" in words
    assert "Mean error (metres) Spent (nats) Left (nats) a 3 3 1 800 0.7 – b 3 2 1 1,000 – 0.1" in words
    shown = data(text)["traces"]
    assert shown["people"] == ["a", "b"]
    assert unpack(shown["size"]).tolist() == [3, 3]
    assert unpack(shown["truth"]).reshape(6, 2)[:, 1].tolist() == [1, 2, 3, 4, 5, 6]
    assert unpack(shown["landmark"]).tolist() == [0, 1, 0] * 2


def test_long_traces_are_shown_by_points_evenly_apart(tmp_path):
    thinned = data(page(trace_folder(tmp_path, 2_999)))["traces"]
    shown = unpack(thinned["truth"]).reshape(2, 1_500, 2)[..., 1]
    assert shown.tolist() == [list(range(1, 3_000, 2)), list(range(3_000, 5_999, 2))]


def test_an_experiment_has_a_page_too(tmp_path, capsys):
    folder = experiment_folder(tmp_path)
    assert main(["report", str(folder)]) == 0
    text = (folder / "report.html").read_text(encoding="utf-8")
    parsed = Text(text)
    for expected in (
        "Which <i>one</i>?",
        "3 of 4 runs ended well: 2 settings, by variant, epsilon.",
        "Danger: 1 failed run. uniform, seed 2: no budget <b>left</b>",
        "Of 2 settings 1 keeps every limit with its whole interval: "
        "hotspots <i>found</i> at least 75 %; Mean absolute error at most 5.",
        "choose Best of 2 settings: uniform, epsilon 1. hotspots <i>found</i>: 80 %. Which <i>one</i>?",
        "hotspots <i>found</i> 80 % limit: at least 75 %",
        "name: <b>best</b>",
        "uniform wins A 2022 ≤ 0.7 0.8 differs",
        "80 ± 10 %",
        "Mean absolute error (people)",
        "F1 & more",
    ):
        assert expected in parsed.text
    assert not {"b", "i"} & set(parsed.names)
    # A figure is an image, whose scripts no browser runs, and comes with the page.
    (source,) = re.findall(r'<img alt="F1 &amp; more" src="data:image/svg\+xml;base64,([^"]*)"', text)
    assert base64.b64decode(source) == (folder / "figures" / "f1.svg").read_bytes()
    shown = data(text)
    assert shown["figures"][0]["rows"] == [["=uniform", "0.8"], ["sample", ""]]
    chart = shown["frontier"]
    assert (chart["settings"], chart["group"]) == (["uniform, epsilon 1", "sample, epsilon 2"], ["uniform", "sample"])
    assert unpack(chart["best"]).tolist() == [1, 0]
    actual = {m["label"]: (m["limit"], m["atLeast"], unpack(m["mean"]).tolist()) for m in chart["measures"]}
    assert actual["hotspots <i>found</i>"] == (0.75, True, pytest.approx([0.8, 0.9]))
    assert actual["Mean absolute error"] == (5.0, False, [3.0, np.inf])
    assert np.isnan(unpack(chart["measures"][1]["low"])).all()


def test_a_choice_with_one_limit_ranks_the_settings_by_what_is_preferred(tmp_path):
    choice = {"settings": 2, "allowed": 1, "at_least": {"hotspot_f1": 0.75}, "at_most": {}, "prefer": "mae"}
    best = {"values": {"variant": "uniform", "epsilon": 1.0}, "means": {"hotspot_f1": 0.8, "mae": 3.0}}
    text = page(experiment_folder(tmp_path, choice=choice | {"best": best}))
    [measure] = data(text)["frontier"]["measures"]
    assert (measure["label"], measure["limit"], measure["atLeast"]) == ("Mean absolute error", None, False)
    assert unpack(measure["mean"]).tolist() == [3.0, np.inf]
    words = Text(text).text
    assert "Best of 2 settings: uniform, epsilon 1. Mean absolute error: 3." in words
    assert "on the frontier" not in words
    # Nothing is advised where nothing keeps the limit, not even what an earlier question left in the folder.
    none = Text(page(experiment_folder(tmp_path / "none", choice=choice | {"allowed": 0, "best": None}))).text
    assert "None of 2 settings keeps every limit. Which" in none
    assert "<b>best</b>" not in none


def test_a_minimal_experiment_has_a_page(tmp_path):
    folder = experiment_folder(tmp_path, varied=[], failed=[], figures=[], expected=[], choice=None)
    words = Text(page(folder)).text
    assert "4 of 4 runs ended well" in words
    assert "Choice" not in words


def test_an_experiment_without_results_is_an_error(tmp_path):
    (experiment_folder(tmp_path) / "summary.parquet").unlink()
    with pytest.raises(DataError, match="run the experiment again"):
        write_report(tmp_path)


WORTH = {"mean_count": 0.04, "error": 24.0, "error_of_zeros": 0.04, "error_of_last": 24.1}


def test_a_useless_release_is_called_so(tmp_path):
    text = page(run_folder(tmp_path / "useless", operator={"utility_summary": WORTH}))
    verdict = "Wrong by 24 people on average where 0.04 are counted: worse than publishing nothing"
    assert verdict in Text(text).text
    assert f"Danger: worse than publishing nothing. {verdict}" in warnings_of(text)
    stale = WORTH | {"error": 3.0, "error_of_zeros": 9.0, "error_of_last": 2.0, "mean_count": 9.0}
    actual = warnings_of(page(run_folder(tmp_path / "stale", operator={"utility_summary": stale})))
    assert "Caution: no better than the last release. Wrong by 3 people on average where 9 are counted (33 %)" in actual


NONE = {"mechanism": "raw", "guarantee": "none: x", "unit": "u", "neighbours": "n", "theorem": "none"}


@pytest.mark.parametrize(
    ("operator", "public", "sentence"),
    [
        (
            {"utility_summary": WORTH | {"error": 4.46, "mean_count": 34.3, "error_of_zeros": 34.3}},
            {},
            "The counts are off by about 4.5 people where 34 are there; whoever sees them, and thought it as likely as "
            "not that a person was there on a day, can become 95.3 % sure, and no surer.",
        ),
        (
            {"utility_summary": WORTH},
            {},
            "The counts are lost in the noise: they are off by about 24 people where 0.04 are there; ",
        ),
        (
            {"utility_summary": WORTH | {"error": 0.0}},
            {"guarantee": [NONE]},
            ", and nothing protects the people in them.",
        ),
        ({}, {}, "Within the bounds on a person&#39;s visits, 95 of 100 counts are off by at most "),
    ],
)
def test_a_page_begins_with_a_sentence_for_everybody_and_then_its_picture(tmp_path, operator, public, sentence):
    text = page(run_folder(tmp_path, operator=operator, public=public))
    first = text.partition('<p class="standfirst">')[2].partition("</p>")[0]
    assert sentence in first
    assert "ε" not in first
    body = text[text.index("<main") :]
    assert body.index("standfirst") < body.index('id="explore"') < body.index('id="figures"') < body.index('id="rows"')


def test_shares_are_shown_in_percent_and_people_with_two_digits(tmp_path):
    shown = Text(
        page(run_folder(tmp_path, operator={"utility": {"mae": 4.462, "skill": 0.8699, "kendall_tau": 0.8123}}))
    ).text
    for words in ("Mean absolute error 4.5 people", "Skill against zeros 87 %", "(100 % is best", "0.81 "):
        assert words in shown


def test_a_useful_release_is_compared_with_free_alternatives(tmp_path):
    useful = {"mean_count": 34.0, "error": 3.8, "error_of_zeros": 34.0, "error_of_last": 8.1}
    text = page(run_folder(tmp_path, operator={"utility_summary": useful}))
    assert "Wrong by 3.8 people on average where 34 are counted (11 %); zeros by 34" in Text(text).text
    assert "Danger" not in warnings_of(text)


def test_what_everybody_understands_comes_before_the_papers_figures(tmp_path):
    text = Text(page(run_folder(tmp_path, operator={"utility": {"mre": 0.011, "skill": 0.9, "mae": 3.8}}))).text
    titles = ("Mean absolute error", "Skill against zeros", "Relative error as in Pyrgelis et al. 2020")
    shown = [text.index(title) for title in titles]
    assert shown == sorted(shown)


def test_an_estimate_shows_both_ends_of_its_interval(tmp_path):
    rows = (account("membership", "membership_auc", 24, 0.579, low=0.453, high=0.695, unit="area under the curve"),)
    assert "0.579 (0.453 to 0.695)" in Text(page(run_folder(tmp_path, operator_accounts=rows))).text


def test_a_chart_that_ends_before_the_run_says_so(tmp_path):
    rows = tuple(account("membership", "membership_auc", w, 0.5) for w in range(1, 13))
    rows += tuple(account("my_own", "loss", w, 0.5) for w in range(1, 25))
    notes = {
        chart["accountant"]: chart["note"] for chart in data(page(run_folder(tmp_path, accounts=rows)))["accounts"]
    }
    assert "The figures end at window 12: the accountant has none for the 12 windows after it." in notes["membership"]
    assert "end at" not in notes["my_own"]


def test_noise_above_all_counts_is_reported_without_the_truth(tmp_path):
    def noisier(rows: pl.DataFrame) -> pl.DataFrame:
        return rows.with_columns(scale=pl.lit(100.0))

    folder, _ = with_releases(tmp_path, noisier)
    (folder / "operator" / "truth.parquet").unlink()
    actual = warnings_of(page(folder))
    assert "Caution: the noise is larger than the counts. 95 % of the error of a count is within ± 300 people" in actual


def test_realised_risk_is_compared_over_whole_horizons_only():
    """The first windows are about fewer guesses, of which more are right: no worse than a bound over all of them."""
    row = {
        "side": "operator",
        "stream": "main",
        "accountant": "reconstruction",
        "subject": "target 1",
        "unit": "probability",
    }
    risks = [(2, 0.958, "last 2"), (3, 0.2, "last 3"), (4, 0.1, "last 3")]
    rows = pl.DataFrame(
        [
            row
            | {"window": window, "name": "realised_risk", "value": value, "low": 0.0, "high": value}
            | {"adjacency": f"success against the {span} windows", "is_final": window == 4}
            for window, value, span in risks
        ]
    )
    (actual,) = figures(rows)
    assert (actual.value, actual.window, actual.high) == (0.2, 3, 0.2)


def test_counts_of_trips_are_never_called_people(tmp_path):
    useful = {"mean_count": 34.0, "error": 3.8, "error_of_zeros": 34.0, "error_of_last": 8.1}
    operator = {"utility_summary": useful, "utility": {"mae": 3.8}, "distinct_people": False}
    operator |= {"users": {"users": 7, "cells_per_user": {"median": 2}}}
    shown = page(run_folder(tmp_path, public={"distinct_people": False}, operator=operator))
    text = Text(shown).text
    for expected in (
        "Counts of distinct trips in 4 cells",
        "Wrong by 3.8 trips on average",
        "Absolute error in trips",
        "repeat a trip in the same cell and window",
        "Trips: 7, each with 2 cells",
    ):
        assert expected in text
    assert data(shown)["counts"]["counted"] == "trips"


def test_visits_that_the_bound_leaves_out_are_reported(tmp_path):
    folder = run_folder(tmp_path)
    assert "left out before" not in Text(page(folder)).text
    truth = folder / "operator" / "truth.parquet"
    rows = pl.read_parquet(truth)
    # Counts are window + cell: 24 windows × 4 cells, 1,344 visits; one of each count is left out.
    pq.write_table(rows.with_columns(bounded=pl.col("count") - 1).to_arrow().cast(TRUTH), truth)
    shown = page(folder)
    messages = "96 of 1,344 visits (7.1 %; a visit is a person in a cell and window) are left out before the noise"
    assert f"Caution: many visits are not counted. {messages}" in warnings_of(shown)
    assert f"{messages}, by the bound on contributions or by a step of the mechanism." in Text(shown).text
    manifest = folder / "operator" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"utility_summary": WORTH}))
    assert "More budget, larger cells or longer windows make it nearer." in warnings_of(page(folder))


def test_unused_rows_are_reported_once(tmp_path):
    text = "10 of 100 rows were in no cell."
    actual = warnings_of(page(run_folder(tmp_path, operator={"unused": text})))
    assert f"Danger: half of the rows or more were not used. {text}" in actual
    assert "rows outside the area" not in actual
