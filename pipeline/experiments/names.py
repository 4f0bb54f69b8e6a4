"""Names in an experiment held against each other: measures that exist, figures and claims about what there is."""

from __future__ import annotations

from mechanisms.core.errors import ParameterError
from pipeline.configuration.document import Mapping, Problem, locate
from pipeline.experiments.config import ExperimentConfig
from pipeline.experiments.measures import measure


def wrong_names(root: Mapping, config: ExperimentConfig, columns: tuple[str, ...]) -> list[Problem]:
    """Measures that do not exist, and names in figures and claims that are neither measured nor varied."""
    problems: list[Problem] = []

    def hold(path: tuple[str | int, ...], name: str, known: tuple[str, ...], what: str) -> None:
        """Note a name that is not among the known ones."""
        if name not in known:
            place, _ = locate(root, path)
            right = f"it must be {what} of this experiment: {', '.join(known) or 'there is none'}"
            problems.append(Problem(place, path, f"{name!r} is not allowed; {right}"))

    for i, name in enumerate(config.measures):
        try:
            measure(name)
        except ParameterError as error:
            place, _ = locate(root, ("measures", i))
            problems.append(Problem(place, ("measures", i), f"{name!r} is not allowed; it must be {error.expected}"))
    for i, name in enumerate(config.tables):
        hold(("tables", i), name, config.measures, "a measure")
    measured, varied = config.measures, (*columns, "seed")
    for i, figure in enumerate(config.figures):
        for name in figure.measures:
            hold(("figures", i), name, measured, "a measure")
        for name in figure.varied:
            hold(("figures", i), name, varied, "something that varies")
    for i, claim in enumerate(config.expected):
        hold(("expected", i, "measure"), claim.measure, measured, "a measure")
        for side in ("where", "over"):
            for name in getattr(claim, side) or ():
                hold(("expected", i, side), name, columns, "something that varies")
    for i, name in enumerate(config.published.measures if config.published else ()):
        hold(("published", "measures", i), name, measured, "a measure")
    for i, difference in enumerate(config.differences):
        for name in difference.measures:
            hold(("differences", i, "measures"), name, measured, "a measure")
    for limits in ("at_least", "at_most"):
        for name in getattr(config.choose, limits, ()):
            hold(("choose", limits), name, measured, "a measure")
    return problems
