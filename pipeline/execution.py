"""Run the Beam graph of a plan on a runner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from mechanisms.core.plugin import ConfigError, DataError, PenstockError
from pipeline.beam_start import import_beam, local_runner
from pipeline.config.run import RunConfig
from pipeline.count_spans import counting_ahead
from pipeline.monitoring.server import HEALTH
from pipeline.output.files import parts_folder
from pipeline.sources.base import LiveSource, Span
from pipeline.streaming import INTERRUPTED, run_stream

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


FLINK = "flink"


def check_runner(config: RunConfig, runner: str) -> None:
    """Raise `ConfigError` where a runner cannot run a configuration."""
    if runner == FLINK:
        return  # as_cluster_plan says what it cannot run
    if not isinstance(config.source, LiveSource):
        return
    if runner != "direct":
        raise ConfigError((f"--runner {runner}: a stream runs on this machine; leave --runner out",))
    if any(step.on_points for step in config.mechanism):
        raise ConfigError(("source.type: traces are released from a finite source (what is under 'of')",))


def execute(
    plan: Plan,
    spans: list[Span],
    runner: str = "direct",
    beam_options: Sequence[str] = (),
    asides: Sequence[Callable[[], object]] = (),
) -> str | None:
    """Run the graph; parts of the output files are left to be merged.

    Parameters
    ----------
    plan
        The run; its folder is ready.
    spans
        The input in pieces; none for a stream.
    runner
        ``direct``: Beam's in-process runner, pinned; ``flink``: as a streaming job of Flink; others by Beam's name.
    beam_options
        Passed on to Beam.
    asides
        Called when this process has counted everything, beside the releases; not called where others count.

    Returns
    -------
    None where it came to its end; otherwise why a stream did not.

    Raises
    ------
    PenstockError
        What a step raised, without Beam's wrapping.
    """
    counts_here = runner == "direct" and not plan.streaming and not plan.on_points
    try:
        with HEALTH.watched(), counting_ahead(plan, spans, *asides) if counts_here else nullcontext():
            import_beam(alone=runner == "direct")
            if runner == FLINK:
                from pipeline.runners.flink.runner import run_flink

                return None if run_flink(plan, beam_options) else INTERRUPTED
            if plan.streaming:
                return run_stream(plan)
            _run_graph(plan, spans, runner, beam_options)
    except RuntimeError as error:
        # Beam adds the step's name to a worker's exception by wrapping it; the cause is what people need.
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, PenstockError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause from None
    return None


def _run_graph(plan: Plan, spans: list[Span], runner: str, beam_options: Sequence[str]) -> None:
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    if plan.on_points:
        from pipeline.trace_graph import build
    else:
        from pipeline.graph import build

    options = PipelineOptions(list(beam_options), save_main_session=False)
    try:
        root = beam.Pipeline(runner=local_runner() if runner == "direct" else runner, options=options)
    except ValueError as error:
        raise ConfigError((f"--runner {runner}: {error}",)) from None
    build(root, plan, spans, alone=runner == "direct")
    try:
        root.run().wait_until_finish()
    except ImportError as error:
        raise ConfigError((f"--runner {runner}: {error}",)) from None
    if runner != "direct":
        _check_shared(plan, spans, runner)


def _check_shared(plan: Plan, spans: list[Span], runner: str) -> None:
    """Raise `DataError` where workers elsewhere have written to a folder of their own."""
    fates = parts_folder(plan, "fates")
    missing = sum(not (fates / f"{span.index:09d}.json").exists() for span in spans)
    if missing:
        raise DataError(
            f"{plan.folder}: {missing} of {len(spans)} pieces of the input are missing after {runner} has run them; "
            "the folder must be one that the driver shares with all workers"
        )
