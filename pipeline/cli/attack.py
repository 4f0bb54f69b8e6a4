"""``penstock attack`` runs inference and reconstruction attacks; ``penstock audit`` computes a lower bound on a
person's privacy loss.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.pipeline import DONE, FAILED
from penstock.pipeline.cli.command import (
    Command,
    add_configuration,
    add_fields,
    add_jobs,
    add_quiet,
    add_removed,
    format_seconds,
    from_arguments,
    print_forecast,
    progress_bar,
    show,
)

if TYPE_CHECKING:
    from penstock.evaluation.attacks.parameters import AttackListener
    from penstock.pipeline.config.run import RunConfig
    from penstock.pipeline.experiments.attack import AttackOutcome

#: Time that attacks on membership take at most where no number of targets is asked for.
MINUTES = 10


def _games() -> dict[str, tuple[type, str]]:
    """Return each attack's parameter class and the question that the attack answers."""
    from penstock.evaluation.attacks.parameters import Game, ReconstructionGame, RecoveryGame

    return {
        "membership": (Game, "is a person in the counts?"),
        "reconstruction": (ReconstructionGame, "where was a person?"),
        "recovery": (RecoveryGame, "where was everybody?"),
    }


def _configure(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    _add_common(parser)
    add_removed(parser, "--save", "--out DIR says where all results are written")
    for option in ("--attack", "--classifier", "--prior"):
        add_removed(parser, option, "penstock attack CONFIG membership (or reconstruction, recovery) has options")
    parser.add_argument("--targets", type=int, metavar="T", help="people attacked (each attack has its default)")
    kinds = parser.add_subparsers(dest="kind", metavar="ATTACK", help="one attack alone (all that apply)")
    for name, (game, question) in _games().items():
        attack = kinds.add_parser(name, help=question, argument_default=argparse.SUPPRESS)
        add_fields(attack, game)
        _add_common(attack, of=name)
        # What stands before the name of an attack may stand behind it, too.
        attack.add_argument("--set", dest="set_later", action="append", metavar="KEY.PATH=VALUE", help="change a value")
        attack.add_argument("--json", action="store_true", help="print JSON for machines")


def _add_common(parser: argparse.ArgumentParser, of: str | None = None) -> None:
    """Add the arguments shared by all attacks, except those that the given attack does not use."""
    if of in (None, "membership"):
        until = "membership: attack no more targets after so long; run again to go on"
        parser.add_argument("--minutes", type=float, metavar="M", help=f"{until} ({MINUTES}; no end with --targets)")
    parser.add_argument("--out", metavar="DIR", help="write here instead of output.path")
    add_jobs(parser, "targets attacked at a time; memory grows with it (one a processor)")
    add_quiet(parser)


def _execute(arguments: argparse.Namespace) -> int:
    from penstock.evaluation.attacks.summaries import as_text, reconstruction_text, recovery_text
    from penstock.mechanisms.core.plugin import ParameterError
    from penstock.pipeline.config.run import load

    if arguments.minutes is not None and not arguments.minutes > 0:
        raise ParameterError("--minutes", arguments.minutes, "a number above 0")
    config = load(arguments.config, [*arguments.set, *getattr(arguments, "set_later", [])], arguments.out)
    quiet = arguments.quiet or arguments.json
    with progress_bar("attacks", enabled=not quiet, piped=not sys.stderr.isatty()) as progress:
        outcomes, left_out = _attack(config, arguments, progress, quiet)
    texts = {"membership": as_text, "reconstruction": reconstruction_text, "recovery": recovery_text}
    lines, figures = list[str](), dict[str, Any]()
    for name, outcome in outcomes.items():
        lines += [texts[name](outcome.summary), *(f"  {path}" for path in outcome.files), *([""] * (len(outcomes) > 1))]
        figures[name] = {"folder": str(outcome.folder), "resumed": outcome.n_resumed, **outcome.summary}
    lines += [f"{name} was left out. {reason}" for name, reason in left_out.items()]
    # Those of the attack on membership are on the top level.
    show(arguments, figures.pop("membership", {}) | figures | {"left_out": left_out}, lines)
    return DONE


def _listener(
    name: str, minutes: float | None, progress: Callable[[int, int | None, str], None], quiet: bool
) -> AttackListener:
    """Return a callback that reports the number of people to attack, the expected duration and the progress."""
    from penstock.evaluation.attacks.parameters import AttackListener

    def begun(n_chosen: int, n_people: int) -> None:
        people = f"{n_chosen:,} of {n_people:,} people" if n_chosen < n_people else f"all {n_people:,} people"
        within = f", as many as {minutes:g} min allow, and three at least" if minutes else ""
        print(f"penstock: {name}: {people} {'counted' if name == 'recovery' else 'attacked'}{within}", file=sys.stderr)

    first: tuple[int, float] | None = None

    def made(done: int, total: int) -> None:
        nonlocal first
        now = time.monotonic()
        first = first or (done, now)
        n_made = done - first[0]
        left = f"about {format_seconds((now - first[1]) / n_made * (total - done))} left" if 0 < n_made < total else ""
        progress(done, total, left)

    return (
        AttackListener(made=made)
        if quiet
        else AttackListener(made=made, begun=begun, foreseen=partial(print_forecast, name))
    )


def _attack(
    config: RunConfig, arguments: argparse.Namespace, progress: Callable[[int, int | None, str], None], quiet: bool
) -> tuple[dict[str, AttackOutcome], dict[str, str]]:
    """Run the attacks. Return their outcomes by name, and the reason why each skipped attack was skipped."""
    from penstock.mechanisms.core.plugin import PenstockError
    from penstock.pipeline.experiments.attack import (
        attack,
        check_recoverable,
        prepare_reconstruction,
        reconstruct,
        recovery,
    )

    games = {
        name: from_arguments(game, arguments) for name, (game, _) in _games().items() if arguments.kind in (None, name)
    }
    wanted = list(games)
    checks: dict[str, Callable[[], Any]] = {
        "reconstruction": lambda: prepare_reconstruction(config, games["reconstruction"]),
        "recovery": lambda: check_recoverable(config),
    }
    left_out: dict[str, str] = {}
    for name in [name for name in wanted if name in checks]:  # before the membership attack, which takes long
        try:
            checks[name]()
        except PenstockError as error:
            if arguments.kind is not None:
                raise
            wanted.remove(name)
            left_out[name] = str(error)
    minutes = MINUTES if arguments.minutes is None and arguments.targets is None else arguments.minutes
    play: dict[str, Callable[..., AttackOutcome]] = {
        "membership": partial(attack, n_jobs=arguments.jobs, minutes=minutes),
        "reconstruction": partial(reconstruct, n_jobs=arguments.jobs),
        "recovery": recovery,
    }
    outcomes: dict[str, AttackOutcome] = {}
    for name in wanted:
        listener = _listener(name, minutes if name == "membership" else None, progress, quiet)
        outcomes[name] = play[name](config, games[name], folder=arguments.out, listener=listener)
    return outcomes, left_out


ATTACK = Command("attack", "simulate attacks against what a configuration releases", _configure, _execute)


def _configure_audit(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    add = parser.add_argument
    add("--runs", type=int, metavar="N", help="releases, each with other people (four times what half the noise needs)")
    add("--minutes", type=float, default=MINUTES, metavar="M", help=f"without --runs: begin no run after ({MINUTES})")
    add("--confidence", type=float, default=0.999, help="probability with which the bound holds (0.999)")
    add("--seed", type=int, default=0, metavar="N", help="seed of coins, places and noise (0)")
    for option in ("--windows", "--without-data", "--delta"):
        add_removed(parser, option, "the windows, people and δ are those of the configuration; --set changes them")
    add("--out", metavar="FILE.json", help="write the figures there, too, as --json prints them")


def _audit(arguments: argparse.Namespace) -> int:
    from penstock.mechanisms.core.plugin import ParameterError
    from penstock.pipeline.atomic import write_json
    from penstock.pipeline.config.run import load
    from penstock.pipeline.experiments.audit import audit

    out = Path(arguments.out) if arguments.out else None
    if out is not None and out.is_dir():
        raise ParameterError("--out", arguments.out, "a file, not a folder")
    with progress_bar("runs", enabled=sys.stderr.isatty() and not arguments.json) as progress:
        verdict = audit(
            load(arguments.config, arguments.set),
            n_runs=arguments.runs,
            minutes=arguments.minutes,
            confidence=arguments.confidence,
            seed=arguments.seed,
            listener=lambda done, total: progress(done, total, ""),
        )
    if out is not None:
        write_json(out, verdict.as_dict())
    show(arguments, verdict.as_dict(), [verdict.as_text()])
    return FAILED if verdict.convicted else DONE


AUDIT = Command("audit", "bound from below what one person loses, beside the claim", _configure_audit, _audit)
