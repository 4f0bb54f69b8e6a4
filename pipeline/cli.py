"""The ``penstock`` command: reads the words, calls the function, prints what a person or a machine wants to see."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

# Heavy imports stay inside the commands: `penstock --help` must answer at once.

DONE, FAILED, WRONG_USE = 0, 1, 2
KINDS = ("mechanisms", "accountants", "sources", "spaces", "windows", "metrics")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns 0 done, 1 failed, 2 wrong use, 3 stopped by a budget, 4 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    words, beam_options = _split_beam(words)
    arguments = _parser().parse_args(words)
    arguments.beam_options = beam_options
    command: Callable[[argparse.Namespace], int] = arguments.command
    from mechanisms.core.errors import ConfigError, ParameterError, PenstockError, UnknownPlugin

    try:
        return command(arguments)
    except (ConfigError, ParameterError, UnknownPlugin) as error:
        return _fail(arguments, error, WRONG_USE)
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python must not try to flush the rest at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except (PenstockError, OSError) as error:
        return _fail(arguments, error, FAILED)
    except KeyboardInterrupt:
        return _fail(arguments, RuntimeError("interrupted"), FAILED)


def _split_beam(words: list[str]) -> tuple[list[str], list[str]]:
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="penstock",
        description="Release counts of people from a stream of location events, and keep the books on what it cost.",
    )
    parser.add_argument("--version", action="version", version=f"penstock {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, command: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(command=command)
        sub.add_argument("--json", action="store_true", help="print JSON for machines")
        return sub

    run = add("run", _run, "run a configuration: read, count, release, account, write")
    _configuration(run)
    run.add_argument("--out", metavar="DIR", help="write here instead of output.path")
    run.add_argument("--runner", default="direct", help="direct (default) or the name of a Beam runner")
    run.add_argument("--shards", type=int, default=1, metavar="N", help="split users while counting (same result)")
    run.add_argument("--resume", action="store_true", help="continue a run that was killed or interrupted")
    run.add_argument("--quiet", action="store_true", help="no progress and no summary")
    run.add_argument("--watch", action="store_true", help="serve the report on this machine while the run goes on")
    run.epilog = "Words after -- are passed on to Beam."
    _configuration(add("validate", _validate, "check a configuration; every error at once, nothing runs"))
    experiment = add("experiment", _experiment, "run a sweep: grid × seeds to one table, figures and advice")
    _configuration(experiment)
    experiment.add_argument("--out", metavar="DIR", help="write here instead of output, or runs/experiments/<name>")
    experiment.add_argument("--jobs", type=int, metavar="N", help="processes at a time (default: one a processor)")
    experiment.add_argument("--reduced", action="store_true", help="at the size that stands under reduced")
    experiment.add_argument("--save", metavar="DIR", help="also copy the small tables there, for the documentation")
    experiment.add_argument("--quiet", action="store_true", help="no progress and no summary")
    _attacking(add("attack", _attack, "simulate membership inference against what a configuration releases"))
    listing = add("list", _list, "list mechanisms, accountants, sources, spaces, windows and metrics")
    listing.add_argument("kind", nargs="?", choices=KINDS, help="only these")
    listing.add_argument("--markdown", action="store_true", help="as the tables of the README")
    add("schema", _schema, "print the JSON Schema of a configuration, for editors")
    convert = add("convert", _convert, "convert a data set in its original format to Parquet")
    convert.add_argument("type", help="source type, for instance cabspotting")
    convert.add_argument("path", help="folder, file or archive of the data set")
    convert.add_argument("target", help="Parquet file to write")
    convert.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="parameter of the source")
    generate = add("generate", _generate, "write a synthetic city as Parquet")
    generate.add_argument("target", help="Parquet file to write")
    generate.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="parameter of the city")
    learn = add("learn", _learn, "learn how people move (transitions, matrices, priors) from the beginning of a stream")
    _configuration(learn)
    learn.add_argument("--out", required=True, metavar="FILE", help="a .npz or .json file")
    learn.add_argument("--windows", type=int, metavar="N", help="how many windows to learn from (default: all)")
    learn.add_argument("--smoothing", type=float, default=0.1, metavar="S", help="steps added to each count")
    learn.add_argument("--unseen", action="store_true", help="not being seen is a state of its own")
    report = add("report", _write_report, "write report.html from the files of a run or of an experiment")
    report.add_argument("folder", metavar="DIR")
    verify = add("verify", _verify, "check a run's folder: row equation, ledger, windows, digests")
    verify.add_argument("folder", metavar="DIR")
    key = add("key", _key, "make a noise key for deployment")
    key.add_argument("action", choices=("new",))
    key.add_argument("path", help="file to write, readable by its owner only")
    return parser


def _configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="CONFIG", help="YAML file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY.PATH=VALUE", help="change a value; may be repeated"
    )


def _attacking(attack: argparse.ArgumentParser) -> None:
    _configuration(attack)
    attack.add_argument("--targets", type=int, metavar="N", help="people attacked, a third of each mobility group (30)")
    attack.add_argument("--samples", type=int, metavar="N", help="labelled aggregates of each target (1000)")
    attack.add_argument("--prior", help="subset (default), same_groups or different_groups")
    attack.add_argument("--attack", help="pca (default) or statistics")
    attack.add_argument("--known", type=float, metavar="SHARE", help="people whom the adversary knows (0.2)")
    attack.add_argument("--group-size", type=int, metavar="N", help="people in an aggregate (half of the known, ≤ 100)")
    attack.add_argument("--observation", type=int, metavar="N", help="windows that the adversary trains on")
    attack.add_argument("--inference", type=int, metavar="N", help="windows of a challenge (168, or what fits)")
    attack.add_argument("--components", type=int, metavar="N", help="principal components at most (600)")
    attack.add_argument("--out", metavar="DIR", help="write here instead of output.path")
    attack.add_argument("--jobs", type=int, default=1, metavar="N", help="targets at a time; memory grows with it (1)")
    attack.add_argument("--quiet", action="store_true", help="no progress and no table")


def _run(arguments: argparse.Namespace) -> int:
    from pipeline.configuration.run import load
    from pipeline.reporting.live import watch
    from pipeline.run import run
    from pipeline.terminal import show_progress, summary

    config = load(arguments.config, arguments.set)
    quiet = arguments.quiet or arguments.json
    watching = watch(Path(arguments.out or config.output.path)) if arguments.watch else nullcontext()
    with watching, show_progress(enabled=not quiet and sys.stderr.isatty()):
        options = (arguments.runner, arguments.beam_options, arguments.shards, arguments.resume)
        result = run(config, arguments.out, *options)
    if arguments.json:
        _print_json({"exit_code": result.exit_code, "folder": str(result.folder), **result.manifest})
    elif not arguments.quiet:
        print(summary(result))
    return result.exit_code


def _validate(arguments: argparse.Namespace) -> int:
    from pipeline.configuration.run import load, resolved

    config = load(arguments.config, arguments.set)
    if arguments.json:
        _print_json({"valid": True, "configuration": resolved(config)})
    else:
        print(f"{arguments.config}: a valid configuration")
    return DONE


def _experiment(arguments: argparse.Namespace) -> int:
    from mechanisms.core.errors import ParameterError
    from pipeline.experiments.display import show_cells, summary
    from pipeline.experiments.load import load_experiment
    from pipeline.experiments.runner import run_experiment

    if arguments.jobs is not None and arguments.jobs < 1:
        raise ParameterError("--jobs", arguments.jobs, "a number at least 1")
    experiment = load_experiment(arguments.config, arguments.set, arguments.reduced)
    quiet = arguments.quiet or arguments.json
    with show_cells(len(experiment.cells), enabled=not quiet and sys.stderr.isatty()) as listener:
        outcome = run_experiment(experiment, arguments.out, arguments.jobs, listener)
    if arguments.save:
        from pipeline.experiments.page import save

        save(outcome.folder, Path(arguments.save))
    if arguments.json:
        _print_json({"exit_code": outcome.exit_code, "folder": str(outcome.folder), **outcome.manifest})
    elif not arguments.quiet:
        print(summary(outcome))
    return outcome.exit_code


def _attack(arguments: argparse.Namespace) -> int:
    from dataclasses import fields

    from mechanisms.core.errors import ParameterError
    from pipeline.attack import Game, attack
    from pipeline.attack_summary import as_text, show_attacks
    from pipeline.configuration.run import load

    if arguments.jobs < 1:
        raise ParameterError("--jobs", arguments.jobs, "a number at least 1")
    given = {field.name: getattr(arguments, field.name) for field in fields(Game)}
    game = Game(**{name: value for name, value in given.items() if value is not None})
    config = load(arguments.config, arguments.set)
    quiet = arguments.quiet or arguments.json
    with show_attacks(enabled=not quiet and sys.stderr.isatty()) as listener:
        outcome = attack(config, game, folder=arguments.out, n_jobs=arguments.jobs, listener=listener)
    if arguments.json:
        _print_json({"folder": str(outcome.folder), "resumed": outcome.n_resumed, **outcome.summary})
    elif not arguments.quiet:
        print(as_text(outcome.summary))
        print("\n".join(f"  {path}" for path in sorted((outcome.folder / "operator").glob("attack.*"))))
    return DONE


def _list(arguments: argparse.Namespace) -> int:
    from pipeline import catalogue

    kinds = (arguments.kind,) if arguments.kind else KINDS
    if arguments.json:
        _print_json({kind: catalogue.entries(kind) for kind in kinds})
    elif arguments.markdown:
        print("\n\n".join(catalogue.markdown(kind) for kind in kinds))
    else:
        print("\n\n".join(catalogue.text(kind) for kind in kinds))
    return DONE


def _schema(arguments: argparse.Namespace) -> int:
    from pipeline.configuration.schema import json_schema

    _print_json(json_schema())
    return DONE


def _convert(arguments: argparse.Namespace) -> int:
    from pipeline.configuration.single import load_plugin
    from pipeline.convert import convert
    from pipeline.source import Source

    source = load_plugin(Source, arguments.type, [f"path={arguments.path}", *arguments.set])
    return _report(arguments, convert(source, Path(arguments.target)))


def _generate(arguments: argparse.Namespace) -> int:
    from pipeline.configuration.single import load_plugin
    from pipeline.convert import convert
    from pipeline.source import Source

    source = load_plugin(Source, "synthetic", arguments.set)
    return _report(arguments, convert(source, Path(arguments.target)))


def _report(arguments: argparse.Namespace, summary: Any) -> int:
    found = summary.as_dict()
    if arguments.json:
        _print_json(found)
    else:
        print("\n".join(f"{name}: {value}" for name, value in found.items()))
    return DONE


def _learn(arguments: argparse.Namespace) -> int:
    from pipeline.configuration.run import load
    from pipeline.learn import learn_to_file

    config = load(arguments.config, arguments.set)
    found = learn_to_file(config, arguments.out, arguments.windows, arguments.smoothing, arguments.unseen)
    if arguments.json:
        _print_json(found)
    else:
        print("\n".join(f"{name}: {value}" for name, value in found.items()))
    return DONE


def _write_report(arguments: argparse.Namespace) -> int:
    from pipeline.reporting import write_report

    path = write_report(Path(arguments.folder))
    if arguments.json:
        _print_json({"report": str(path)})
    else:
        print(path)
    return DONE


def _verify(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from pipeline.verify import verify

    checks = verify(Path(arguments.folder))
    if arguments.json:
        _print_json([asdict(check) for check in checks])
    else:
        for check in checks:
            print(f"{'ok    ' if check.passed else 'WRONG '} {check.name}: {check.detail}")
    return DONE if all(check.passed for check in checks) else FAILED


def _key(arguments: argparse.Namespace) -> int:
    from mechanisms.core.noise import new_key_file

    new_key_file(Path(arguments.path))
    print(f"{arguments.path}: a new noise key; keep it secret, and keep it: losing it loses retry safety")
    return DONE


def _fail(arguments: argparse.Namespace, error: BaseException, code: int) -> int:
    problems = getattr(error, "problems", (str(error),))
    if getattr(arguments, "json", False):
        _print_json({"exit_code": code, "error": type(error).__name__, "problems": list(problems)})
    for problem in problems:
        print(f"penstock: {problem}", file=sys.stderr)
    return code


def _print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    print()


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("penstock")
    except metadata.PackageNotFoundError:
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
