"""Configuration of an experiment: metrics, figures, expectations and advice (`load.py` reads the grid)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from penstock.evaluation.attacks.membership import RECOVERY, attack_and_figure, plays_membership
from penstock.evaluation.attacks.parameters import Game
from penstock.mechanisms.core.plugin import Checked, ParameterError, parameter
from penstock.pipeline.config.yaml import Mapping, Problem, locate
from penstock.pipeline.experiments.measures import measure


@dataclass(frozen=True, kw_only=True)
class FigureSpec(Checked):
    """A figure of the results, over metrics or varied parameters (key paths, ``variant``, ``seed``)."""

    file: str = parameter(doc="file to write to figures/, ending in .svg or .png")
    type: str = parameter(
        doc="means with intervals against x; one point per setting; spread over seeds",
        choices=("line", "scatter", "box"),
    )
    x: str = parameter(doc="quantity on the horizontal axis: a varied key or, in a scatter, a measure")
    y: str = parameter(doc="measure on the vertical axis")
    by: str | None = parameter(None, doc="quantity shown by colour")
    where: dict[str, Any] = parameter(factory=dict, doc="only settings with these values")
    log_x: bool = parameter(False, doc="logarithmic horizontal axis")
    log_y: bool = parameter(False, doc="logarithmic vertical axis")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.file.endswith((".svg", ".png")) or "/" in self.file or "\\" in self.file:
            raise ParameterError("file", self.file, "a file name ending in .svg or .png")

    @property
    def measures(self) -> tuple[str, ...]:
        """The axes that are metrics."""
        return (self.x, self.y) if self.type == "scatter" else (self.y,)

    @property
    def varied(self) -> tuple[str, ...]:
        """The axes that are varied parameters."""
        axes = () if self.type == "scatter" else (self.x,)
        return (*axes, *((self.by,) if self.by else ()), *self.where)


@dataclass(frozen=True, kw_only=True)
class Expectation(Checked):
    """An expected result: limits for a number, which either confirm or refute a claim.

    The number is the measure's mean over the settings of ``where``; with ``over``, its ratio to the mean over the
    settings of ``over`` (the other keys of ``where`` apply to both sides).
    """

    says: str = parameter(doc="the claim in words")
    source: str = parameter(doc="source of the claim")
    measure: str = parameter(doc="name of a measure")
    where: dict[str, Any] = parameter(factory=dict, doc="settings that the claim is about")
    over: dict[str, Any] | None = parameter(None, doc="settings that they are compared with, as a ratio")
    at_least: float | None = parameter(None, doc="smallest number that the claim allows")
    at_most: float | None = parameter(None, doc="largest number that the claim allows")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.at_least is None and self.at_most is None:
            raise ParameterError("at_least", None, "given, unless at_most is")


@dataclass(frozen=True, kw_only=True)
class Choose(Checked):
    """Limits for a setting's whole confidence interval across seeds, and the metric that ranks settings."""

    at_least: dict[str, float] = parameter(factory=dict, doc="smallest allowed value by measure: what must be useful")
    at_most: dict[str, float] = parameter(factory=dict, doc="largest allowed value by measure: what must be safe")
    prefer: str | None = parameter(
        None, doc="measure that decides among allowed settings; unset: the first of at_least, else of at_most"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.limited:
            raise ParameterError("at_least", {}, "given with at least one measure, unless at_most is")
        is_ranked = self.preferred in self.limited or measure(self.preferred).higher_is_better is not None
        if not is_ranked:
            expected = f"a measure with a limit ({', '.join(self.limited)}), or one of which it is known what is better"
            raise ParameterError("prefer", self.prefer, expected)

    @property
    def limited(self) -> tuple[str, ...]:
        """The metrics that have a limit."""
        return tuple(dict.fromkeys((*self.at_least, *self.at_most)))

    @property
    def measures(self) -> tuple[str, ...]:
        """The metrics that have a limit, along with the preferred metric."""
        return tuple(dict.fromkeys((*self.limited, self.preferred)))

    @property
    def preferred(self) -> str:
        """The metric for choosing among the allowed settings."""
        return self.prefer or self.limited[0]

    def is_higher_better(self, name: str) -> bool:
        """Return whether higher values of a metric are better."""
        return name in self.at_least or (name not in self.at_most and bool(measure(name).higher_is_better))


@dataclass(frozen=True, kw_only=True)
class ExperimentHeader(Checked):
    """Fields that all kinds of experiments have in common."""

    name: str = parameter(doc="name of the experiment and of its saved results")
    question: str = parameter(doc="question, in a sentence or two")
    setting: str | None = parameter(
        None, doc="under which conditions, in words: data, guarantee, what is not comparable"
    )
    conclusion: str | None = parameter(None, doc="result of a full run in words, for the documentation")
    output: str | None = parameter(None, kind="output", doc="output folder; unset: runs/experiments/<name>")


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig(ExperimentHeader):
    """A sweep's configuration, excluding its base configuration and grid."""

    seeds: int = parameter(1, at_least=1, doc="number of seeds: 1, 2, …; every setting runs with each")
    group_size: int | None = parameter(
        None, at_least=1, doc="people of a run, a random group drawn by the seed; unset: everybody"
    )
    measures: tuple[str, ...] = parameter(doc="measures to keep: metrics, accountant/name, or module:function")
    attack: Game | None = parameter(None, doc="game of the measures attack/…; unset: its defaults")
    labels: dict[str, str] = parameter(factory=dict, doc="names of measures and settings in figures and tables")
    figures: tuple[FigureSpec, ...] = parameter((), doc="pictures of the results; they need the extra penstock[plot]")
    expected: tuple[Expectation, ...] = parameter((), doc="expected results and their sources")
    choose: Choose | None = parameter(None, doc="advice: limits, and what is best within them")

    def __post_init__(self) -> None:
        super().__post_init__()
        if twice := [name for name in self.measures if self.measures.count(name) > 1]:
            raise ParameterError("measures", twice[0], "written once")
        if not self.measures:
            raise ParameterError("measures", (), "at least one measure")
        attacks = [name for name in self.measures if name.startswith("attack/")]
        games = [name for name in attacks if plays_membership(name)]
        if len(games) < len(attacks) and self.group_size is not None:
            expected = f"left out with attack/{RECOVERY}: trajectories are recovered of everybody"
            raise ParameterError("group_size", self.group_size, expected)
        if self.attack is None:
            return
        if not games:
            raise ParameterError("attack", self.attack, "left out: no measure is an attack on membership")
        if self.attack.attack != Game().attack:
            raise ParameterError("attack.attack", self.attack.attack, "left out: measures name the attacks")
        for name in games:
            replace(self.attack, attack=attack_and_figure(name)[0])  # refuses a prior that the attack cannot have

    @property
    def played(self) -> Game | None:
        """The game to play if the results of an attack are measured, or None otherwise."""
        attacked = any(map(plays_membership, self.measures))
        return (self.attack or Game()) if attacked else None

    def label(self, name: str) -> str:
        """Return the label for a metric or varied parameter in tables and figures."""
        return self.labels.get(name, name)


def wrong_names(root: Mapping, config: ExperimentConfig, columns: tuple[str, ...]) -> list[Problem]:
    """Report unknown metrics, as well as names in figures and claims that are neither measured nor varied."""
    problems: list[Problem] = []

    def refuse(path: tuple[str | int, ...], name: str, expected: str) -> None:
        problems.append(Problem(locate(root, path)[0], path, f"{name!r} is not allowed; it must be {expected}"))

    def check(path: tuple[str | int, ...], name: str, known: tuple[str, ...], kind: str) -> None:
        if name not in known:
            refuse(path, name, f"{kind} of this experiment: {', '.join(known) or 'there is none'}")

    for i, name in enumerate(config.measures):
        try:
            measure(name)
        except ParameterError as error:
            refuse(("measures", i), name, error.expected)
    measured, varied = config.measures, (*columns, "seed")
    for i, figure in enumerate(config.figures):
        for name in figure.measures:
            check(("figures", i), name, measured, "a measure")
        for name in figure.varied:
            check(("figures", i), name, varied, "something that varies")
    for i, claim in enumerate(config.expected):
        check(("expected", i, "measure"), claim.measure, measured, "a measure")
        for side in ("where", "over"):
            for name in getattr(claim, side) or ():
                check(("expected", i, side), name, columns, "something that varies")
    for limits in ("at_least", "at_most"):
        for name in getattr(config.choose, limits, ()):
            check(("choose", limits), name, measured, "a measure")
    if config.choose and config.choose.prefer:
        check(("choose", "prefer"), config.choose.prefer, measured, "a measure")
    return problems
