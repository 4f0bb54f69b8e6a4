"""The membership attack of the command line: same counts as a run, resumption, and detection of planted people."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import fields, replace

import numpy as np
import polars as pl
import pytest

from penstock.evaluation.attacks.challenge import AttackResult
from penstock.evaluation.attacks.membership import SCHEMA, MembershipAttack
from penstock.evaluation.attacks.parameters import AttackListener, Game
from penstock.evaluation.attacks.summaries import as_text, attacked_part, counted_people, near_chance, summarize
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.mechanisms.core.plugin import DataError, ParameterError
from penstock.pipeline.cli.main import main
from penstock.pipeline.config.plan import make_plan
from penstock.pipeline.config.run import loads
from penstock.pipeline.counting.presence import People
from penstock.pipeline.experiments.attack import attack, attacked_run, play_all
from penstock.pipeline.experiments.pieces import RecordFolder
from tests.tools.experiment_cases import CITY
from tests.tools.small_configuration import run_locally as run

SMALL = Game(targets=6, samples=80, known=0.5, group_size=15)

CHAINS = {
    "as they are": "mechanism: {type: raw}",
    "bounded": "mechanism: {type: raw}\nbounding: {max_cells: 1}",
    "bounded by time": "mechanism: {type: raw}\nbounding: {max_cells: 1, keep: first}",
    "coarse and sampled": (
        "mechanism: [{type: spatial_generalization, rows: 1, columns: 2}, {type: temporal_generalization, windows: 3}, "
        "{type: sampling, rate: 0.5}, {type: raw}]\nbounding: {max_cells: 1}"
    ),
}


def configuration(more="mechanism: {type: raw}", *overrides):
    return loads(CITY + more, overrides=overrides)


@pytest.fixture(scope="module")
def noisy():
    return configuration("mechanism: {type: discrete_laplace, epsilon: 2.0}\nbounding: {max_cells: 2}")


@pytest.fixture(scope="module")
def whole(noisy, tmp_path_factory):
    return attack(noisy, SMALL, folder=tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("chain", CHAINS)
def test_presence_adds_up_to_what_the_run_counts(chain, tmp_path):
    config = configuration(CHAINS[chain], "windows.size=4h")  # so long that people are in several cells
    presence = make_plan(config).people.presence(6)
    run(config, tmp_path)
    truth = pl.read_parquet(tmp_path / "operator" / "truth.parquet").sort("window", "cell")
    plan = make_plan(config)
    place = {str(cell): number for number, cell in enumerate(plan.space.cells)}
    index = truth["cell"].cast(pl.String).replace_strict(place, return_dtype=pl.Int64).to_numpy()
    for column, binary in (("count", presence.raw), ("bounded", presence.released)):
        actual = binary.sum(axis=0)[truth["window"].to_numpy() - 1, index]
        np.testing.assert_array_equal(actual, truth[column].to_numpy())
    assert presence.raw.sum() >= truth["count"].sum() > 0
    same = presence.raw is presence.released
    assert same == (chain == "as they are")


def test_groups_of_cells_have_one_noise_in_the_game_as_in_the_run():
    chain = "[{type: spatial_generalization, rows: 1, columns: 3}, {type: discrete_laplace, epsilon: 1.0}]"
    plan = make_plan(configuration(f"mechanism: {chain}"))
    game, defense = MembershipAttack(attacked_run(plan, 6), replace(SMALL, inference=6)).games[True]
    released = defense(np.zeros((2, 6, 9), np.int64), 1)
    assert game.space.shape == (6, 9)
    assert released.any()
    for group in range(3):
        of_group = released[..., plan.chain.groups == group]
        np.testing.assert_array_equal(of_group, np.broadcast_to(of_group[..., :1], of_group.shape))


def test_the_first_windows_are_those_of_the_whole_run():
    plan = make_plan(configuration(CHAINS["bounded"]))
    day, morning = plan.people.presence(24), plan.people.presence(9)
    seen = day.raw[:, :9].any(axis=(1, 2))
    np.testing.assert_array_equal(morning.users, day.users[seen])
    np.testing.assert_array_equal(morning.released, day.released[seen][:, :9])


def test_too_much_for_memory_is_refused():
    with pytest.raises(DataError, match="fewer windows"):
        make_plan(configuration()).people.presence(24, max_entries=1000)


def test_the_table_has_a_column_for_every_result_of_an_attack():
    assert {field.name for field in fields(AttackResult)} <= set(SCHEMA)


def test_what_is_released_as_it_is_gains_nothing(tmp_path):
    outcome = attack(configuration(), SMALL, folder=tmp_path)
    everybody = outcome.summary["groups"]["everybody"]
    assert everybody["privacy_gain"]["mean"] == 0
    assert everybody["raw"] == everybody["released"]
    assert everybody["raw"]["mean"] > 0.9


def test_what_is_suppressed_whole_gains_everything(tmp_path):
    outcome = attack(configuration("mechanism: {type: suppress_small, threshold: 100}"), SMALL, folder=tmp_path)
    released = outcome.results.filter("released")["auc"]
    assert released.to_list() == [0.5] * 6
    assert outcome.summary["groups"]["everybody"]["privacy_gain"]["mean"] == 1


def test_targets_are_equally_many_of_each_mobility_group(whole):
    raw = whole.results.filter(~pl.col("released"))
    assert sorted(raw["mobility"]) == sorted(["barely", "somewhat", "highly"] * 2)
    assert raw["target"].n_unique() == 6


def test_the_number_of_jobs_changes_nothing(noisy, whole, tmp_path):
    assert attack(noisy, SMALL, folder=tmp_path, n_jobs=2).results.equals(whole.results)


@pytest.mark.parametrize("stop", [1, 4])
def test_an_interrupted_attack_goes_on(noisy, whole, tmp_path, stop):
    def interrupt(done, total):
        if done == stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        attack(noisy, SMALL, folder=tmp_path, listener=AttackListener(made=interrupt))
    made = []
    outcome = attack(noisy, SMALL, folder=tmp_path, listener=AttackListener(made=lambda *both: made.append(both)))
    assert outcome.n_resumed == stop
    assert made == [(number, 6) for number in range(stop, 7)]
    assert outcome.results.equals(whole.results)
    assert outcome.summary == whole.summary


def test_another_game_starts_afresh(noisy, whole, tmp_path):
    shutil.copytree(whole.folder / "operator", tmp_path / "operator")
    assert attack(noisy, SMALL, folder=tmp_path).n_resumed == 6
    other = Game(targets=3, samples=40, known=0.5, group_size=15)
    assert attack(noisy, other, folder=tmp_path).n_resumed == 0
    assert attack(replace(noisy, seed=4), other, folder=tmp_path).n_resumed == 0


def test_other_code_of_penstock_starts_afresh(noisy, whole, tmp_path, other_code):
    shutil.copytree(whole.folder / "operator", tmp_path / "operator")
    other_code()
    assert attack(noisy, SMALL, folder=tmp_path).n_resumed == 0


def test_other_code_of_a_plug_in_starts_afresh(noisy, tmp_path):
    file = tmp_path / "extra" / "mechanisms" / "own.py"
    file.parent.mkdir(parents=True)
    config, resumed = replace(noisy, plugins=(str(tmp_path / "extra"),)), []
    for text in ("SCALE = 1", "SCALE = 1", "SCALE = 2"):
        file.write_text(text)
        resumed.append(attack(config, Game(targets=3, samples=40, known=0.5), folder=tmp_path / "out").n_resumed)
    assert resumed == [0, 3, 0]


def test_only_figures_are_written(whole):
    files = sorted(path.relative_to(whole.folder).as_posix() for path in whole.folder.rglob("*") if path.is_file())
    assert files[:2] == ["operator/attack.json", "operator/attack.parquet"]
    assert all(re.fullmatch(r"operator/attack/[0-9a-f]{32}\.json", name) for name in files[2:])
    assert len(files[2:]) == 6
    assert json.loads((whole.folder / "operator" / "attack.json").read_text())["groups"] == whole.summary["groups"]


@pytest.mark.parametrize("prior", ["same_groups", "different_groups"])
def test_past_groups_are_trained_on_before_the_challenge(prior, tmp_path):
    game = Game(targets=3, samples=60, group_size=10, prior=prior)
    outcome = attack(configuration(), game, folder=tmp_path)
    assert outcome.summary["game"]["observation"] == (0, 16)
    assert outcome.summary["game"]["inference"] == (16, 24)
    assert outcome.results["n_challenges"].unique().to_list() == [20]
    assert outcome.results["n_train"].unique().to_list() == [40]


def test_longer_windows_are_not_cut(tmp_path):
    config = configuration("mechanism: [{type: temporal_generalization, windows: 3}, {type: raw}]")
    with pytest.raises(ParameterError, match="multiples of 3"):
        attack(config, Game(targets=3, samples=60, group_size=10, prior="same_groups"), folder=tmp_path)


@pytest.mark.parametrize(
    ("game", "message"),
    [
        ({"targets": 2}, "targets"),
        ({"prior": "all"}, "subset"),
        ({"attack": "guess"}, "pca"),
        ({"known": 0.0}, "known"),
        ({"samples": 1}, "samples"),
        ({"known": 1.0, "challenges": "others"}, "no one left whom she does not know"),
        ({"prior": "same_groups", "challenges": "others"}, "challenges: 'others' .* same_groups"),
    ],
)
def test_games_are_checked(game, message):
    with pytest.raises(ParameterError, match=message):
        Game(**game)


@pytest.mark.parametrize("periods", [{"observation": 30}, {"observation": 5, "inference": 6}])
def test_periods_are_checked(periods, tmp_path):
    with pytest.raises(ParameterError, match="observation"):
        attack(configuration(), Game(**periods), folder=tmp_path)


def test_released_aggregates_must_fit_before_anything_is_read(tmp_path, noisy, monkeypatch):
    monkeypatch.setattr(People, "presence", lambda *a: pytest.fail("the source was read"))
    game = Game(targets=3, samples=3_000_000)  # of 24 windows and 9 cells
    with pytest.raises(ParameterError, match=r"samples: 3000000 .* at most 2314814 .* 24 windows of 9 cells"):
        attack(noisy, game, folder=tmp_path)


@pytest.mark.parametrize("n_targets", [4, 5])
def test_as_many_are_attacked_as_asked_for(n_targets, noisy, tmp_path):
    game = Game(targets=n_targets, samples=20, known=0.5, group_size=5)
    outcome = attack(noisy, game, folder=tmp_path)
    assert outcome.results["target"].n_unique() == n_targets == outcome.summary["game"]["n_attacked"]


def test_everybody_is_attacked_where_there_are_no_more(tmp_path):
    config = configuration("mechanism: {type: raw}", "source.n_users=7")
    outcome = attack(config, Game(targets=50, samples=20, known=1.0, group_size=3), folder=tmp_path)
    n_people = outcome.summary["game"]["n_people"]
    assert outcome.summary["groups"]["everybody"]["n_targets"] == n_people <= 7
    assert f"{n_people} people are all that there are: fewer targets than the 50 asked for" in as_text(outcome.summary)


def test_too_few_people_are_refused(tmp_path):
    with pytest.raises(DataError, match="at least 3 people"):
        attack(configuration("mechanism: {type: raw}", "source.n_users=2"), SMALL, folder=tmp_path)


def test_deployments_and_traces_are_refused(tmp_path, noisy):
    from penstock.mechanisms import get

    (tmp_path / "key").write_text(bytes(range(32)).hex())
    (tmp_path / "key").chmod(0o600)
    plan = make_plan(noisy)
    deployed = replace(plan, keys=replace(plan.keys, noise_key=NoiseKey.from_file(tmp_path / "key")))
    with pytest.raises(ParameterError, match="deployment"):
        deployed.people.presence(24)
    traces = replace(noisy, mechanism=(get("planar_laplace").examples()[0],))
    with pytest.raises(ParameterError, match="traces"):
        attack(traces, SMALL, folder=tmp_path)


def results(*auc, mobility="barely", released=False):
    row = {"game": "g", "user": "1", "mobility": mobility, "released": released, "n_train": 8, "n_challenges": 20}
    return [{**row, "target": n, "auc": a, "low": a, "high": a, "n_features": 3} for n, a in enumerate(auc)]


def test_a_summary_by_hand():
    table = pl.DataFrame([*results(1.0, 0.9), *results(0.5, 0.7, released=True)], schema=SCHEMA)
    summary = summarize(table)
    assert set(summary["groups"]) == {"barely", "everybody"}
    actual = summary["groups"]["barely"]
    assert actual["raw"]["mean"] == pytest.approx(0.95)
    assert actual["privacy_gain"]["mean"] == pytest.approx((1 + 0.5) / 2)
    reach = 12.706 * 0.1 / 2  # Student's t with one degree of freedom; the deviation of two is half their distance √2
    assert actual["raw"]["low"] == pytest.approx(0.95 - reach, abs=1e-4)
    assert actual["raw"]["high"] == 1


def test_equal_areas_still_have_an_interval():
    table = pl.DataFrame([*results(1.0, 1.0), *results(1.0, 1.0, released=True)], schema=SCHEMA)
    alike = summarize(table)["groups"]["barely"]
    assert alike["raw"]["low"] < 1 == alike["raw"]["high"]
    assert alike["privacy_gain"] == {"mean": 0.0, "low": None, "high": None}  # [0, 0] would be sure of two people
    one = pl.DataFrame([*results(0.8), *results(0.8, released=True)], schema=SCHEMA)
    figures = summarize(one)["groups"]["barely"]
    assert figures["raw"]["low"] < 0.8 < figures["raw"]["high"]
    assert figures["privacy_gain"] == {"mean": 0.0, "low": None, "high": None}


def test_a_gain_near_guessing_stands_beside_that_of_the_mean_areas():
    table = pl.DataFrame([*results(0.7, 0.7), *results(0.45, 0.55, released=True)], schema=SCHEMA)
    line = "guessing has 0.5: gains of single targets are noise near it; of the mean areas the gain is 1.00"
    assert near_chance(summarize(table)["groups"]) == [line]
    clear = pl.DataFrame([*results(1.0, 1.0), *results(0.98, 0.99, released=True)], schema=SCHEMA)
    assert near_chance(summarize(clear)["groups"]) == []


def test_the_command_prints_a_table_or_json(tmp_path, capsys):
    path = tmp_path / "attack.yaml"
    path.write_text(CITY + "mechanism: {type: suppress_small, threshold: 100}")
    words = ["attack", str(path), "--out", str(tmp_path / "out"), "membership", "--targets", "3"]
    words += ["--samples", "40", "--known", "0.5"]
    assert main(words) == 0
    shown = capsys.readouterr()
    assert "everybody" in shown.out
    assert str(tmp_path / "out" / "operator" / "attack.parquet") in shown.out
    assert "3 of 3 attacks" in shown.err.splitlines()
    assert main([*words, "--json"]) == 0
    actual = json.loads(capsys.readouterr().out)
    assert actual["resumed"] == 3
    assert any(line.startswith("everybody") for line in as_text(actual).splitlines())
    assert main([*words, "--prior", "all"]) == 2
    assert "different_groups" in capsys.readouterr().err


def test_challenges_of_others(tmp_path):
    game = Game(targets=3, samples=80, known=0.6, challenges="others")
    outcome = attack(configuration(), game, folder=tmp_path)
    assert outcome.summary["game"]["group_size"] == 12  # half of the 24 whom she does not know
    assert outcome.summary["game"]["challenges"] == "others"
    played = attack(configuration(), Game(targets=3, samples=80, known=0.6), folder=tmp_path)
    assert played.n_resumed == 0  # another game


def test_the_table_says_whom_challenges_count():
    game = {"prior": "subset", "known": 0.07, "challenges": "others"}
    assert "7 % of the people; challenges count people whom she does not know" in counted_people(game)[0]
    assert "count people whom she knows" in counted_people(game | {"challenges": "known"})[0]
    assert counted_people(game | {"prior": "same_groups"}) == []
    assert "knows no one" in counted_people(game | {"challenges": "known", "attack": "zero_knowledge"})[0]


def test_defaults_fit_the_size_of_aggregates_and_the_people_there_are(noisy):
    plan = make_plan(noisy)
    presence = plan.people.presence(24)
    n_people = len(presence.users)
    assert Game().settled(*presence.raw.shape).targets == min(30, n_people)
    assert Game(targets=5).settled(*presence.raw.shape).targets == 5
    cells, people = np.zeros((40, 168, 108), bool), np.zeros((40, 1))
    assert Game().settled(*cells.shape).targets == 30
    cells = np.zeros((40, 168, 400), bool)
    assert Game().settled(*cells.shape).targets == 6
    assert Game(samples=500).settled(*cells.shape).targets == 15
    alone = np.ones((1, 2, 2), bool)
    with pytest.raises(DataError, match="needs at least 3 people"):
        MembershipAttack(replace(attacked_run(plan, 24), users=people[:1], raw=alone, released=alone), Game())


def test_what_a_sample_leaves_out_is_said():
    game = {"n_attacked": 6, "n_people": 3206, "observation": (0, 168), "inference": (0, 168), "n_windows": 273}
    text_of_error = "\n".join(attacked_part(game | {"group_size": 1}))
    assert "6 of the 3,206 people seen are attacked" in text_of_error
    assert "--targets 3206" in text_of_error
    assert "the first 168 of 273 windows are attacked" in text_of_error
    assert "an aggregate counts 1 of 3,206 people: that is no crowd" in text_of_error
    assert attacked_part(game | {"group_size": 100, "n_attacked": 3206, "n_windows": 168}) == []


def test_what_there_was_no_time_for_is_said_and_made_by_a_further_call(noisy, whole, tmp_path):
    """The first three targets are one of each mobility group; in the end all is as if nothing had stopped it."""
    first = attack(noisy, SMALL, folder=tmp_path, n_jobs=1, minutes=1e-9)
    assert (first.summary["game"]["n_attacked"], first.summary["game"]["n_left"]) == (3, 3)
    assert sorted(first.results["mobility"].unique()) == ["barely", "highly", "somewhat"]
    assert "stopped for the time: 3 of 6 targets are left, which the same command goes on with" in as_text(
        first.summary
    )
    second = attack(noisy, SMALL, folder=tmp_path)
    assert second.n_resumed == 3
    assert second.results.equals(whole.results)
    assert second.summary["groups"] == whole.summary["groups"]
    assert "stopped" not in as_text(second.summary)


def test_the_command_ends_after_some_minutes_unless_targets_are_asked_for(tmp_path, capsys):
    path = tmp_path / "run.yaml"
    path.write_text(CITY + "mechanism: {type: raw}")
    words = ["attack", str(path), "membership", "--out", str(tmp_path / "out"), "--samples", "40"]
    assert main([*words, "--minutes", "1e-9", "--jobs", "1"]) == 0
    printed = capsys.readouterr()
    assert "stopped for the time: 27 of 30 targets are left" in printed.out
    assert "penstock: membership: 30 of 60 people attacked" in printed.err
    assert "penstock: membership: about 1 s\n" in printed.err  # no longer than it may take
    assert main([*words, "--targets", "6"]) == 0
    printed = capsys.readouterr()
    assert "stopped" not in printed.out
    assert re.search(r"penstock: membership: 6 of 60 people attacked\n.*: about \d+ (s|min)\n", printed.err, re.DOTALL)
    assert main([*words, "--minutes", "0"]) == 2
    assert "--minutes: 0.0 is not allowed" in capsys.readouterr().err


def test_the_time_of_what_is_left_is_foreseen_before_the_first_target(tmp_path):
    told = list[float]()
    listener = AttackListener(foreseen=told.append, made=lambda n_made, n_targets: told.append(-n_made))
    given = RecordFolder(tmp_path), "game", range(4), lambda target: [{"target": target}], 1, listener, lambda: 10.0
    for minutes, expected in ((1e-9, [30.0, 0, -1, -2, -3]), (None, [10.0, -3, -4]), (None, [-4])):
        told.clear()
        play_all(*given, minutes)
        assert told == expected


@pytest.mark.parametrize("kind", ["membership", "reconstruction", "recovery"])
def test_every_attack_tells_its_time_before_it_starts(tmp_path, capsys, kind):
    path = tmp_path / "run.yaml"
    path.write_text(CITY + "bounding: {max_cells: 1}\nmechanism: {type: laplace, epsilon: 1.0}")
    few = [] if kind == "recovery" else ["--targets", "3"]
    few += ["--samples", "40"] if kind == "membership" else []
    assert main(["attack", str(path), *few[:2], kind, *few[2:], "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    printed = capsys.readouterr()
    assert re.match(rf"penstock: {kind}: .* (attacked|counted)\npenstock: {kind}: about \d+ s\n0 of \d", printed.err)
    assert re.search(
        r"\d+ of 100 (pairs .*|hours|visits) with the release, \d+ from exact counts, \d+ without either: ", printed.out
    )
