"""Run a plan as a single Beam graph in this process, on Flink or on any other Beam runner.

`penstock.pipeline.runners.beam.graph` holds the transforms; nothing here imports Beam before a graph is run.
"""

from __future__ import annotations

import io
import logging
import shutil
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from penstock.mechanisms.core.plugin import ConfigError, PenstockError, describe_plugin_error
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.output.checkpoint import finished
from penstock.pipeline.runners.failure import raise_failure
from penstock.pipeline.runners.shared import INTERRUPTED
from penstock.pipeline.sources.stream import Stream

if TYPE_CHECKING:
    from apache_beam import Pipeline


FLINK = "flink"
PRISM = "prism"
#: Runners with a job server of their own, and the modules that check that they are ready and run a plan on them.
RUNNER_MODULES = {FLINK: "penstock.pipeline.runners.flink.runner", PRISM: "penstock.pipeline.runners.prism"}
#: Runners of Beam that a run is taken to as well: they start no server on this machine.
ELSEWHERE = ("dataflow", "PortableRunner")
#: Names by which Beam knows runners that have another here.
RUNNER_ALIASES = {"DirectRunner": "direct", "FlinkRunner": FLINK, "PrismRunner": PRISM, "DataflowRunner": "dataflow"}
#: What some of Beam's options would open.
EXPOSED = "ports to the network, behind which whoever reaches them runs code in the account of the noise key"
#: Beam's in-process runner by its full name, as ``--runner`` of Beam takes one. The name "DirectRunner" picks another
#: engine from one pipeline and one release of Beam to the next.
IN_PROCESS = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
#: Rows of a block of an endless source: small enough for any channel, large enough to amortise a call.
BLOCK_ROWS = 100_000


def distributed(plan: Plan, n_shards: int = 1, one_reader: bool = False) -> Plan:
    """Adapt a plan to remote workers, using an absolute folder, sharded users and small blocks.

    ``n_shards``: parts that users are split into while counting; never changes a result. ``one_reader``: a live
    source is not shared.
    """
    source = plan.config.source
    if isinstance(source, Stream):
        source = replace(source, block_rows=min(source.block_rows, BLOCK_ROWS))
    config = replace(plan.config, source=source)
    batching = replace(plan.batching, n_shards=n_shards)
    if one_reader:
        batching = replace(batching, max_readers=1)
    return replace(plan, config=config, folder=plan.folder.absolute(), batching=batching)


def check_graph(plan: Plan) -> None:
    """Raise `StateVersionError` if the folder's job was built by a version of penstock with different steps."""
    _import_quietly()
    from penstock.pipeline.runners.flink import jobs

    jobs.check_graph(plan)


def check_options(plan: Plan, runner: str, beam_options: Sequence[str], unverified_engine: bool = False) -> str | None:
    """Check the options before touching the folder. Raises `ConfigError` if one is missing or rejected by Beam or the
    runner.

    Returns the engine that a stream goes to, if it is not verified; see `engine.unverified_engine`.
    """
    _import_quietly()
    from apache_beam.options.pipeline_options import PipelineOptions

    try:
        with redirect_stderr(io.StringIO()) as errors:
            given = PipelineOptions(list(beam_options), save_main_session=False).get_all_options()
    except SystemExit:
        *_, last = errors.getvalue().splitlines() or ["Beam refuses them"]
        raise ConfigError((f"options of Beam: {last.partition('error: ')[2] or last}",)) from None
    if (mode := given["direct_running_mode"]) != "in_memory":
        raise ConfigError((f"--direct_running_mode={mode}: opens {EXPOSED}; leave it out, or take --runner flink",))
    if runner in RUNNER_MODULES and not (plan.resumed and finished(plan)):
        import_module(RUNNER_MODULES[runner]).check_ready(plan, beam_options)
    if runner not in (
        "direct",
        *RUNNER_MODULES,
    ):  # theirs are complete by default, and their workers listen on loopback
        if given["job_endpoint"] == "embed" or given["environment_type"] == "LOOPBACK":
            listening = "--job_endpoint=embed and --environment_type=LOOPBACK open"
            raise ConfigError((f"--runner {runner}: {listening} {EXPOSED}; take --runner flink or prism",))
        shutil.rmtree(_pipeline(plan, runner, beam_options).local_tempdir)
    if not plan.streaming or runner == "direct":
        return None
    from penstock.pipeline.runners.beam import engine

    return engine.unverified_engine(beam_options, unverified_engine)


def _pipeline(plan: Plan, runner: str, beam_options: Sequence[str]) -> Pipeline:
    """Return an empty pipeline. Raises `ConfigError` if the runner is missing or lacks an option."""
    import apache_beam as beam
    from apache_beam.options.pipeline_options import PipelineOptions

    from penstock.pipeline.runners.beam.engine import UNSPLIT

    if plan.streaming:
        from penstock.pipeline.runners.beam.service import options_of

        beam_options = options_of(plan, beam_options)
    try:
        return beam.Pipeline(runner=runner, options=PipelineOptions([UNSPLIT, *beam_options], save_main_session=False))
    except (ValueError, ImportError) as error:
        message, *missing = str(error).splitlines()
        raise ConfigError(tuple(f"--runner {runner}: {line}" for line in missing or [message])) from None


def run(plan: Plan, runner: str = "direct", beam_options: Sequence[str] = ()) -> str | None:
    """Run a plan's graph. The parts of the output files are merged afterwards.

    ``runner`` is ``direct`` (Beam's in-process runner, pinned), ``flink``, ``prism``, or another by Beam's name.
    Returns None if the run came to its end; otherwise why a stream did not. What a step raised is raised again
    without Beam's wrapping.
    """
    _import_quietly()
    try:
        if runner in RUNNER_MODULES:
            return None if import_module(RUNNER_MODULES[runner]).run(plan, beam_options) else INTERRUPTED
        if plan.streaming:
            from penstock.pipeline.runners.beam.service import run_service

            return None if run_service(plan, _pipeline(plan, runner, beam_options)) else INTERRUPTED
        from penstock.pipeline.runners.beam.graph import build, check_complete
        from penstock.pipeline.runners.beam.read import ReadEvents

        engine = IN_PROCESS if runner == "direct" else runner
        pipeline = _pipeline(plan, engine, beam_options)
        # The in-process runner has one worker unless the options say otherwise.
        build(pipeline, plan, ReadEvents(plan, shared=engine != IN_PROCESS or bool(beam_options)))
        pipeline.run().wait_until_finish()
        check_complete(plan, engine)
    except ImportError as error:
        original = unwrapped(error)
        raise ConfigError((f"--runner {runner}: {describe_plugin_error(original) or original}",)) from None
    except Exception as error:
        original = unwrapped(error)
        if isinstance(error, RuntimeError) and not isinstance(original, PenstockError):
            raise_failure(plan.folder)  # workers elsewhere report theirs here
        raise original from original.__cause__
    return None


def unwrapped(error: Exception) -> Exception:
    """Return the error that a step raised, without Beam's wrapping, or the error itself if it is not wrapped.

    >>> try:
    ...     try:
    ...         {}["gone"]
    ...     except KeyError as raised:  # as Beam does it
    ...         raise KeyError(f"{raised.args[0]} [while running 'Count']")
    ... except KeyError as error:
    ...     print(repr(unwrapped(error)))
    KeyError('gone')
    """
    cause: BaseException | None = error
    while cause is not None:
        original = cause.__context__
        if "[while running '" in str(cause) and isinstance(original, Exception):
            return original
        if isinstance(cause, PenstockError):
            return cause
        cause = cause.__cause__
    return error


def _import_quietly() -> None:
    """Import Beam, suppressing warnings about optional client libraries."""
    logging.getLogger("apache_beam").setLevel(logging.ERROR)
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        import apache_beam  # noqa: F401
    finally:
        root.setLevel(level)
