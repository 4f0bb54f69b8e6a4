"""Run a configuration, from its input to its output files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.pipeline import DONE, FAILED, INTERRUPTED, STOPPED, atomic
from penstock.pipeline.config.build import input_paths
from penstock.pipeline.config.plan import Plan, make_plan
from penstock.pipeline.config.run import RunConfig
from penstock.pipeline.config.sections import check_local
from penstock.pipeline.counting import input_check
from penstock.pipeline.monitoring import logs, metrics
from penstock.pipeline.monitoring.redaction import explain_disk_errors, redact_errors
from penstock.pipeline.output import checkpoint, files, registration
from penstock.pipeline.output import manifest as outcome
from penstock.pipeline.output.cells import write_cells
from penstock.pipeline.output.files import LOCK, exclusive_lock
from penstock.pipeline.output.manifest import input_digests, operator_manifest, public_manifest
from penstock.pipeline.output.writer import sinks_of
from penstock.pipeline.reporting.result import Result
from penstock.pipeline.runners import beam
from penstock.pipeline.runners.local import run_finite, run_stream
from penstock.pipeline.sources.base import SOURCES, EventBlock, LiveSource, is_recorded

DIRECT, LOCAL, FLINK, PRISM = "direct", "local", beam.FLINK, beam.PRISM
#: What a run leaves in its folder, and so what the next run into it replaces.
OUTPUTS = ("public", "operator", "report.html")


def run(
    config: RunConfig,
    folder: str | Path | None = None,
    runner: str = "direct",
    beam_options: Sequence[str] = (),
    n_shards: int = 1,
    resume: bool = False,
    unverified_engine: bool = False,
) -> Result:
    """Run a configuration and return its result. Takes the arguments of `penstock.run`, with ``folder`` for ``out``.

    ``runner``: ``direct``, Beam's in-process runner, pinned; ``local``, a plain loop in this process, without Beam,
    which also runs every stream under ``direct``; ``flink``, ``prism``, ``dataflow``, ``PortableRunner``.
    ``unverified_engine``: whether a stream may go to an engine behind ``--job_endpoint`` that was never shown to hold
    the minimum of its readers' watermarks. Its windows may lack rows, and the manifests say so.

    Raises `ConfigError` while another run writes to the folder, `DataError` for input that cannot be read or of which
    no row can be used, `RowEquationError` if a row was lost, and the rest of the family.
    """
    runner = beam.RUNNER_ALIASES.get(runner, runner)
    if config.on_exhausted is None:
        config = replace(config, on_exhausted="stop" if runner in (DIRECT, LOCAL) else "repeat")
    with redact_errors(config.mode == "deployment"), explain_disk_errors():
        clock = [("begin", time.monotonic())]
        check_runner(config, runner)
        check_local("--out", str(folder or ""))
        folder = Path(folder or config.output.path)
        nonce = checkpoint.nonce_of_run(config, folder, resume)
        plan = make_plan(config, folder, nonce, n_shards=n_shards, resumed=resume)
        if _is_engine_stream(plan, runner) or runner in beam.RUNNER_MODULES:
            plan = beam.distributed(plan, n_shards, one_reader=runner == PRISM)
        if resume and not plan.folder.exists():
            checkpoint.check_same(plan)  # says that there is no run, and makes no folder
        engine = None
        if runner != LOCAL and (beam_options or runner != DIRECT):
            engine = beam.check_options(plan, runner, beam_options, unverified_engine)
        with exclusive_lock(plan.folder):
            return _run_alone(plan, runner, beam_options, engine, clock)


def _run_alone(
    plan: Plan, runner: str, beam_options: Sequence[str], unverified: str | None, clock: list[tuple[str, float]]
) -> Result:
    """Run a plan while holding its folder's lock. ``clock`` collects the run's phases and their end times."""
    config = plan.config
    if not plan.resumed:
        check_input(plan)
    finished_before = _prepare_folder(plan, on_engine=_is_engine_stream(plan, runner))
    if finished_before is not None:
        return _done(plan, finished_before)
    if unverified is not None:
        text = (
            f"{unverified}, unverified: it was never shown to hold the minimum of its readers' watermarks, so that "
            "windows may have been released before all of their rows were read"
        )
        atomic.write_json(outcome.unverified_note(plan), text)
        logs.caution(f"UNVERIFIED ENGINE: {text}")
    # What is known beforehand, so that the run can be watched; its end adds what the accountants say.
    known = public_manifest(plan, ledger=outcome.ledger_head(plan))
    atomic.write_json(plan.folder / "public" / "manifest.json", known)
    if not plan.on_points:
        write_cells(plan.folder, plan.space)
        if config.output.outlines is not None:
            from penstock.pipeline.output.maps import write_outlines

            if caution := write_outlines(plan.folder, config.output.outlines):
                logs.caution(caution)
    for sink in sinks_of(plan):
        sink.begin()
    clock.append(("prepare", time.monotonic()))
    facts = {"mode": config.mode, "runner": runner, "resumed": plan.resumed, "folder": str(plan.folder)}
    logs.event("run begun", name=config.name, **facts)
    with metrics.running():
        unfinished = _execute(plan, runner, beam_options)
    clock.append(("pipeline", time.monotonic()))
    outcome.merge_outputs(plan)
    return _finish(plan, unfinished, clock)


def check_runner(config: RunConfig, runner: str) -> None:
    """Raise `ConfigError` if a runner cannot run the configuration."""
    if runner not in (known := (DIRECT, LOCAL, FLINK, PRISM, *beam.ELSEWHERE)):
        raise ConfigError((f"--runner {runner}: it must be one of {', '.join(known)}",))
    if config.mode == "deployment" and runner not in (DIRECT, LOCAL) and config.output.ledger is None:
        text = "the ledger has to be on a file system that all workers share; output.ledger names it"
        raise ConfigError((f"--runner {runner}: {text}",))
    if not isinstance(config.source, LiveSource):
        return
    is_here = runner in (DIRECT, LOCAL, FLINK, PRISM)
    if config.source.by_connector and is_here:
        text = "is read by Beam's connector, which this runner has not; run it with --runner dataflow"
        raise ConfigError((f"--runner {runner}: source.type: {SOURCES.name_of(type(config.source))} {text}",))
    if not (config.source.by_connector or is_here or config.source.on_services):
        text = "a stream of this source runs on this machine, or on Flink; leave --runner out, or take prism or flink"
        raise ConfigError((f"--runner {runner}: {text}",))
    if any(step.guarantee.on_points for step in config.mechanism):
        raise ConfigError(("source.type: traces are released from a finite source (what is under 'of')",))


def _is_engine_stream(plan: Plan, runner: str) -> bool:
    """Return whether the run is a stream whose state is kept by a distributed engine."""
    return plan.streaming and runner not in (DIRECT, LOCAL)


def _recorded_blocks(plan: Plan) -> Iterator[EventBlock]:
    """Yield the blocks of a rereadable input, and nothing for any other input."""
    if not is_recorded(plan.config.source):
        return
    recorded = plan.config.source.recorded.reading(plan.space.reads)
    yield from replace(recorded, block_rows=min(recorded.block_rows, input_check.SAMPLE)).all_blocks()


def check_input(plan: Plan) -> None:
    """Raise `DataError` if no input row is usable, before anything is replaced, charged or released.

    **Privacy**: in a deployment, too. The message is the operator's, and nothing is written; but who waits for releases
    and sees none learns that not one row was usable, which no budget covers. With ``allow_empty: true`` a deployment
    only says so, and releases as it would with the row of one person.
    """
    if not is_recorded(plan.config.source):
        return
    rows, sample = input_check.first_use(_recorded_blocks(plan), plan.grid, plan.space, plan.on_points)
    if rows.used:
        return
    why = input_check.explain_unused_rows(outcome.as_equation(rows), sample, plan.grid.calendar, plan.space)
    if plan.config.allow_empty:
        logs.caution(f"nothing of the input can be used, and empty counts are released. {why}")
        return
    where = "".join(f"source.path: {path}: " for path in input_paths(plan.config.source.recorded)[:1])
    text = f"{where}nothing of the input can be used, and nothing was released. {why}"
    empty = " Where no one may well have been there, allow_empty: true releases empty counts, so that no one learns it."
    raise DataError(text + (empty if plan.config.mode == "deployment" else ""))


def _execute(plan: Plan, runner: str, beam_options: Sequence[str]) -> str | None:
    """Run a plan. Return None at the end of input, or the reason why a stream stopped early."""
    if plan.streaming and not _is_engine_stream(plan, runner):
        return run_stream(plan)
    if runner == LOCAL:
        run_finite(plan)
        return None
    return beam.run(plan, runner, beam_options)


def _prepare_folder(plan: Plan, on_engine: bool) -> dict[str, Any] | None:
    """Prepare the folder, and return the operator's manifest if the run being resumed is already complete."""
    if plan.resumed:
        manifest = checkpoint.prepare(plan, beam.check_graph if on_engine else None)
        if exposed := files.readable_by_others(plan.folder):
            text = f"{len(exposed):,} files and folders can be opened by others than their owner, such as {exposed[0]}"
            logs.caution(f"{text}; chmod -R go= {plan.folder / 'operator'}")
        return manifest
    _clear(plan)
    if notice := checkpoint.begin(plan):
        logs.caution(notice)
    for side in ("public", "operator"):  # a refused run leaves neither
        atomic.make_folder(plan.folder / side)
    return None


def _finish(plan: Plan, unfinished: str | None, clock: list[tuple[str, float]]) -> Result:
    """Reconcile the row counts and write the manifests."""
    equation = outcome.row_equation(plan)
    code, reason = DONE, "done"
    if stopped := atomic.read_json(files.parts_folder(plan, "stopped") / "stopped.json"):
        code, reason = STOPPED, stopped
    elif unfinished:
        code, reason = INTERRUPTED, f"{unfinished}; {checkpoint.RESUME_HINT}"
    complete, ended = code == DONE, code != INTERRUPTED
    offsets = outcome.offsets_read(plan, complete)
    if offsets and (words := offsets["shortfall"]):
        code, reason = FAILED, f"not all of the input was counted: {'; '.join(words[:5])} ({reason})"
        logs.problem("not all of the input was counted", shortfall=words)
    manifest = operator_manifest(
        plan,
        rows=equation,
        users=outcome.user_summaries(plan),
        **outcome.release_summary(plan, complete),
        inputs=input_digests(plan.config),
        ledger=outcome.ledger_head(plan),
        exit={"code": code, "reason": reason, "ended": ended, "complete": complete},
    )
    if offsets:
        manifest["offsets"] = offsets
    manifest |= _remarks(plan, equation, is_synthetic=not manifest["inputs"])
    if files.has_truth(plan):
        from penstock.pipeline.output.utility import write_utility

        manifest |= write_utility(plan)
    clock.append(("finish", time.monotonic()))
    manifest["seconds"] = {name: round(end - begin, 3) for (_, begin), (name, end) in pairwise(clock)}
    atomic.write_json(
        plan.folder / "public" / "manifest.json",
        public_manifest(plan, outcome.account_summaries(plan), manifest["ledger"]),
    )
    atomic.write_json(plan.folder / "operator" / "manifest.json", manifest)
    registration.record_end(plan)
    return _done(plan, manifest)


def _remarks(plan: Plan, equation: dict[str, Any], is_synthetic: bool) -> dict[str, Any]:
    """Return remarks for the operator about unused rows and suspicious data."""
    lost = input_check.mostly_lost(equation)
    if is_synthetic and not lost:
        return {}
    try:
        sample, input_warnings = input_check.sample_of(_recorded_blocks(plan)), list[str]()
        if sample:
            facts = plan.grid.calendar, plan.space, plan.on_points, plan.config.source.recorded
            input_warnings = input_check.input_warnings(sample, *facts, equation["rejected_by_reason"])
    except DataError:  # the input has changed since it was read, which its digests say
        sample, input_warnings = [], []
    unused = {"unused": input_check.explain_unused_rows(lost, sample, plan.grid.calendar, plan.space)} if lost else {}
    return unused | ({"doubts": input_warnings} if input_warnings else {})


def _done(plan: Plan, manifest: dict[str, Any]) -> Result:
    ending = manifest["exit"]
    logs.event("run ended", exit_code=ending["code"], reason=ending["reason"])
    if ending["ended"]:
        outcome.clear_parts(plan)
    if plan.config.output.report:
        from penstock.pipeline.reporting.page import write_report

        write_report(plan.folder)
    if ending["ended"]:
        for sink in sinks_of(plan):
            sink.end()
    return Result(plan.folder)


def _clear(plan: Plan) -> None:
    """Remove an earlier run from a simulation's folder, or raise `ConfigError` for a deployment."""
    # A run that was killed before it was marked as begun has charged and released nothing. The ledger's head is kept
    # as soon as it is open, which is before the mark.
    left = (f".{checkpoint.MARK}.*.tmp", "ledger.head", ".ledger.head.*.tmp")
    earlier = [path for name in OUTPUTS if (path := plan.folder / name).exists()]
    bare = all(
        path.is_dir() and not path.is_symlink() and all(any(map(inner.match, left)) for inner in path.iterdir())
        for path in earlier
    )
    if plan.config.mode == "deployment" and not bare:
        raise checkpoint.folder_taken_error(plan)
    if bare and any(path.name not in (LOCK, *OUTPUTS) for path in plan.folder.iterdir()):
        raise ConfigError((f"output.path: {plan.folder} holds files that no run wrote; choose another folder",))
    for path in earlier:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
