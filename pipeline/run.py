"""Run one configuration from its input to its files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechanisms.core.errors import ConfigError, PenstockError
from pipeline import checkpoint, outcome, parts, resuming
from pipeline.configuration.run import RunConfig
from pipeline.manifest import operator_manifest, public_manifest
from pipeline.plan import Plan, make_plan
from pipeline.sources.stream import Stream
from pipeline.streaming import run_stream
from pipeline.trace_run import run_traces

DONE, FAILED, WRONG_USE, STOPPED, INTERRUPTED = 0, 1, 2, 3, 4
#: What a run leaves in its folder, and so what the next run into it replaces.
OUTPUTS = ("public", "operator", "report.html")


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Parameters
    ----------
    exit_code
        0 done, 3 stopped because a budget would be exceeded, 4 interrupted (a stream that can be continued).
    folder
        Where the files are.
    manifest
        The operator's manifest.
    """

    exit_code: int
    folder: Path
    manifest: dict[str, Any]


def run(
    config: RunConfig,
    folder: str | Path | None = None,
    runner: str = "direct",
    beam_options: Sequence[str] = (),
    n_shards: int = 1,
    resume: bool = False,
) -> Result:
    """Run a configuration.

    Parameters
    ----------
    config
        As `pipeline.configuration.run.load` returns it.
    folder
        Where to write; None: the configuration's ``output.path``.
    runner
        ``direct``: Beam's in-process runner, pinned; others by Beam's own name.
    beam_options
        Passed on to Beam.
    n_shards
        Parts that users are split into while counting; never changes a result.
    resume
        Continue the run that was killed or interrupted in the folder; nothing to do where it had finished.

    Raises
    ------
    PenstockError
        `DataError` for unreadable input, `RowEquationError` if a row was lost, and the rest of the family.
    """
    begun = time.monotonic()
    _check_stream(config, runner)
    plan = make_plan(config, Path(folder) if folder else None, n_shards=n_shards, resumed=resume)
    if resume:
        finished_before = resuming.prepare(plan)
        if finished_before is not None:
            return _done(plan, int(finished_before["exit"]["code"]), finished_before)
    else:
        _clear(plan)
        checkpoint.begin(plan)
    if plan.on_points:
        manifest = run_traces(plan, lambda spans: _execute(plan, spans, runner, beam_options))
        return _done(plan, DONE, manifest)
    # What is known beforehand, so that the run can be watched; its end adds what the accountants say.
    parts.write_json(plan.folder / "public" / "manifest.json", public_manifest(plan))
    spans = [] if plan.streaming else config.source.spans()
    prepared = time.monotonic()
    ended = _execute(plan, spans, runner, beam_options)
    executed = time.monotonic()
    outcome.merge_outputs(plan)
    equation = outcome.row_equation(plan)
    reason = outcome.stopped(plan)
    code, words = (STOPPED, reason) if reason else (DONE, "done") if ended else (INTERRUPTED, resuming.HOW_TO)
    accounts = outcome.account_summaries(plan)
    manifest = operator_manifest(
        plan,
        rows=equation,
        users=outcome.user_summaries(plan),
        windows={"planned": plan.calendar.n_windows, **outcome.actions(plan.folder)},
        accounts=accounts,
        inputs=config.source.digests(),
        exit={"code": code, "reason": words},
    )
    if config.mode == "simulation" and config.utility:
        from pipeline.utility import write_utility

        manifest["utility"] = write_utility(plan)
    finished = time.monotonic()
    manifest["seconds"] = {
        "prepare": round(prepared - begun, 3),
        "pipeline": round(executed - prepared, 3),
        "finish": round(finished - executed, 3),
    }
    parts.write_json(plan.folder / "public" / "manifest.json", public_manifest(plan, accounts))
    parts.write_json(plan.folder / "operator" / "manifest.json", manifest)
    return _done(plan, code, manifest)


def _done(plan: Plan, exit_code: int, manifest: dict[str, Any]) -> Result:
    if exit_code != INTERRUPTED:
        outcome.clear_parts(plan)
    if plan.config.output.report:
        from pipeline.reporting import write_report

        write_report(plan.folder)
    return Result(exit_code, plan.folder, manifest)


def _check_stream(config: RunConfig, runner: str) -> None:
    if not isinstance(config.source, Stream):
        return
    if runner != "direct":
        raise ConfigError((f"--runner {runner}: a replayed stream runs on this machine; leave --runner out",))
    if any(step.on_points for step in config.mechanism):
        raise ConfigError(("source.type: traces are released from a finite source; give what is under 'of' itself",))


def _clear(plan: Plan) -> None:
    """Make the folder ready: a simulation replaces an earlier run; a deployment never touches one."""
    earlier = [plan.folder / name for name in OUTPUTS if (plan.folder / name).exists()]
    if earlier and plan.config.mode == "deployment":
        raise ConfigError((f"output.path: {plan.folder} holds an earlier run; choose another folder",))
    foreign = plan.folder.exists() and not earlier and any(plan.folder.iterdir())
    if foreign:
        raise ConfigError((f"output.path: {plan.folder} holds files that no run wrote; choose another folder",))
    for path in earlier:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for side in ("public", "operator"):
        (plan.folder / side).mkdir(parents=True, exist_ok=True)


def _quiet_beam() -> None:
    """Beam warns at import of clients that are not installed and not needed; errors still show."""
    import logging

    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    import apache_beam  # noqa: F401

    root.setLevel(level)


def _execute(plan: Plan, spans: list[Any], runner: str, beam_options: Sequence[str]) -> bool:
    """Run the graph; False where a stream was stopped before its end."""
    _quiet_beam()
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    if plan.on_points:
        from pipeline.trace_graph import build
    else:
        from pipeline.graph import build

    options = PipelineOptions(list(beam_options), save_main_session=False)
    try:
        if plan.streaming:
            return run_stream(plan)
        with beam.Pipeline(runner=_runner(runner), options=options) as root:
            build(root, plan, spans, alone=runner == "direct")
    except RuntimeError as error:
        # Beam adds the step's name to a worker's exception by wrapping it; the cause is what people need.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, PenstockError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause from None
    return True


def _runner(name: str) -> Any:
    if name != "direct":
        return name
    # Pinned: the name "DirectRunner" may pick another engine from one release of Beam to the next.
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

    return FnApiRunner()
