"""``penstock choose`` ranks mechanisms that offer the same guarantee by the error that they make on given data."""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from typing import TYPE_CHECKING

from penstock.pipeline import DONE, FAILED
from penstock.pipeline.cli.command import (
    Command,
    add_configuration,
    add_fields,
    add_jobs,
    add_quiet,
    from_arguments,
    print_lines,
    progress_bar,
    show,
)

if TYPE_CHECKING:
    from penstock.pipeline.experiments.choose import Choice, ChoiceRequest

#: Candidates that the summary shows.
MAX_SHOWN = 12
#: Errors of which a release of zeros has 1; the first that is known of decides.
SHARES = ("mean daily_relative_mae", "mean relative_mae")
REMEDY = "take larger cells (--grids tries some), longer windows or more budget"
LOOKED = "choosing looks at the exact counts: no guarantee covers the choice, and a deployment refuses its file"


def _configure(parser: argparse.ArgumentParser) -> None:
    add_configuration(parser)
    from penstock.pipeline.experiments.choose import ChoiceRequest

    add_fields(parser, ChoiceRequest)
    add = partial(parser.add_argument, type=_limit_of, action="append", default=[], metavar="MEASURE=X")
    add("--at-most", help="a limit; may be repeated")
    add("--at-least", help="a limit (unset: better than nothing, such as skill=0.01)")
    parser.add_argument("--out", metavar="DIR", help="write here instead of runs/choose/<name>")
    add_jobs(parser)
    add_quiet(parser)


def _execute(arguments: argparse.Namespace) -> int:
    from penstock.accountants.core.accountant import ACCOUNTANTS
    from penstock.pipeline.config.run import load
    from penstock.pipeline.experiments.choose import ChoiceRequest, choose

    config = load(arguments.config, arguments.set)  # before the request, whose measures may be of its plug-ins
    n_jobs = arguments.jobs or os.cpu_count() or 1
    arguments.at_least, arguments.at_most = dict(arguments.at_least), dict(arguments.at_most)
    asked = from_arguments(ChoiceRequest, arguments).of(config)
    quiet = arguments.quiet or arguments.json
    total = 0
    with progress_bar("trials", enabled=not quiet, piped=not sys.stderr.isatty()) as progress:

        def begun(task: str, n_trials: int) -> None:
            nonlocal total
            if not quiet:
                looked = "" if total else f"penstock: asked: {asked.question}\npenstock: {LOOKED}\n"
                print(f"{looked}penstock: {task}: {n_trials} trials", file=sys.stderr)
            total = n_trials

        def listener(done: int, failed: int, n_read: int) -> None:
            progress(done + failed, total, f"{failed} failed" if failed else "")

        choice = choose(arguments.config, asked, arguments.out, arguments.set, n_jobs, begun, listener)
    facts = {"asked": asked.question, "folder": str(choice.folder), "grids": choice.tried, "failed": choice.failed}
    lines = summary(choice, asked)
    if choice.best.is_file():
        kept = {type(entry) for entry in load(choice.best).accountants}
        left_out = [ACCOUNTANTS.name_of(type(entry)) for entry in config.accountants if type(entry) not in kept]
        lines += [f"left out  {name}: it has no theorem for the best" for name in left_out]
    show(arguments, facts | {"attacked": choice.attacked} | choice.choice, lines)
    if arguments.quiet and not arguments.json:
        print_lines("\n".join(line for line in lines if line.startswith(("CAUTION", "FAILED", "best"))))
    return FAILED if choice.failed or not choice.choice else DONE


def _limit_of(text: str) -> tuple[str, float]:
    """Parse a limit such as ``relative_mae=0.3`` into a metric's name and its value."""
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        expected = "a measure and a number, such as relative_mae=0.3"
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it must be {expected}") from None


def summary(chosen: Choice, asked: ChoiceRequest) -> list[str]:
    """Return a summary of the choice: the ranking, the binding constraint and the files written."""
    from penstock.pipeline.experiments.results import describe_best
    from penstock.pipeline.reporting.experiment import describe_binding

    choice, table = chosen.choice, chosen.ranking
    failed = [f"FAILED    {chosen.failed:,} trials: {'; '.join(chosen.problems[:3])}"] if chosen.failed else []
    if not choice:
        return [*failed, "best      none: nothing could be tried, every trial failed"]
    means = [name for name in table.columns if name.startswith("mean ")]
    error = next((name for name in SHARES if name in means), None)
    worse_than_zeros = table.filter(table[error] >= 1)["variant"].to_list() if error else []
    missed = f" (nothing kept the limits on: {', '.join(chosen.tried[:-1])})" if chosen.tried[1:] else ""
    lines = [f"asked     {asked.question}", f"grid {chosen.tried[-1]}{missed}"]
    if chosen.attacked:
        head = f"{'advantage over the most exposed people':44}{'mean':>10}{'interval':>20}"
        lines.append(f"{head}  at most {asked.advantage:g}")
    for row in chosen.attacked:
        ends = "" if row["low"] is None else f"{row['low']:.3f} to {row['high']:.3f}"
        mean = "failed" if row["mean"] is None else f"{row['mean']:.3f}"
        lines.append(f"{row['variant']:44}{mean:>10}{ends:>20}  {'refused' if row['refused'] else 'kept'}")
    if not choice["settings"]:
        none = "best      none: every candidate is refused; ask for less budget or a longer stretch"
        return [*failed, *lines, none, f"looked    {LOOKED}"]
    lines.append(f"{'candidate':44}" + "".join(f"{name.removeprefix('mean '):>20}" for name in means) + "  limits")
    for row in table.head(MAX_SHOWN).iter_rows(named=True):
        shown = "".join(f"{row[name]:>20.4g}" for name in means)
        lines.append(f"{row['variant']:44}{shown}  {'kept' if row['allowed'] else 'missed'}")
    if len(table) > MAX_SHOWN:
        lines.append(f"… and {len(table) - MAX_SHOWN} more, in {chosen.report}")
    sides = (("at_least", "≥"), ("at_most", "≤"))
    limits = ", ".join(f"{name} {sign} {limit:g}" for side, sign in sides for name, limit in choice[side].items())
    lines.append(f"limits    {limits}" + (", of the whole interval over seeds" if asked.n_seeds > 1 else ""))
    if binding := describe_binding(choice, str, lambda row: str(row["variant"])):
        lines.append(f"binding   {binding}")
    if choice["best"]:
        lines.append(f"best      {choice['best']['values']['variant']}: {chosen.best}")
        lines.append(f"          {describe_best(choice['best'])}")
        is_worse, worse = choice["best"]["values"]["variant"] in worse_than_zeros, "the best is no nearer to the counts"
    else:
        is_worse, worse = len(worse_than_zeros) == len(table), "no candidate is nearer to the counts"
        lines.append("best      none keeps all limits: ask for less, or spend more")
    caution = [f"CAUTION   {worse} than zeros are: publish nothing, or {REMEDY}"] if is_worse else []
    return [*caution, *failed, *lines, f"looked    {LOOKED}"]


CHOOSE = Command("choose", "rank mechanisms with one guarantee by their error on one's own data", _configure, _execute)
