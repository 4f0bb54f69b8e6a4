"""Run a plan on Prism, Beam's single-machine engine, with an event-driven clock and no checkpoints.

Prism does not hold a step at the minimum of several readers' watermarks (``docs/streaming.md`` has a pipeline that
shows it). So one reader has the whole source here, as in the plain loop.

Prism splits a bundle that makes no progress for a tenth of a second, in the middle of a key, too, and then runs both
parts at the same time: of the two states that they leave, one is lost (``splitBundle`` of its ``elementmanager.go``).
Row counts and accounts were short on a busy machine. So bundles are not split (`engine.UNSPLIT`).
"""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Sequence
from contextlib import redirect_stderr

from apache_beam.options.pipeline_options import PipelineOptions, PrismRunnerOptions
from apache_beam.runners.portability.prism_runner import PrismJobServer
from apache_beam.version import __version__ as beam_version

from penstock.mechanisms.core.plugin import ConfigError
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.monitoring import logs
from penstock.pipeline.output.manifest import counted_rows
from penstock.pipeline.runners.beam.jobs import ENDED, served, submit
from penstock.pipeline.runners.shared import live_input, live_source


def run(plan: Plan, beam_options: Sequence[str] = ()) -> bool:
    """Run a plan on a new Prism process. The parts of the output files are merged afterwards.

    A resumed stream is read from its beginning, and what was released and charged stays. Returns whether the run came
    to its end; otherwise it was stopped by SIGINT or SIGTERM. Raises `PenstockError` if a step failed for good.
    """
    words = _command(beam_options)
    folder = plan.folder / "operator" / "checkpoint" / "prism"
    # Of two ports Prism takes the last one.
    with served("Prism", lambda port: [*words, f"--job_port={port}"], folder) as endpoint:
        logs.event("Prism started", beam=beam_version)
        defaults = [f"--job_endpoint={endpoint}", f"--job_name={plan.config.name}", "--environment_type=LOOPBACK"]
        streaming = ["--streaming"] if plan.streaming else []
        return submit(plan, [*defaults, *streaming, *beam_options], "Prism") == ENDED


def check_ready(plan: Plan, beam_options: Sequence[str]) -> None:
    """Raise `ConfigError` if Prism is missing, or `DataError` if the beginning of input to be read again is gone."""
    _command(beam_options)
    if plan.resumed and plan.streaming:
        live_source(plan).check_beginning(live_input(plan), counted_rows(plan).offsets)


def _command(beam_options: Sequence[str]) -> list[str]:
    """Return the command that starts Prism. Beam downloads Prism if it is not installed."""
    options = PipelineOptions(list(beam_options), save_main_session=False)
    prism = options.view_as(PrismRunnerOptions)
    prism.prism_location = prism.prism_location or shutil.which("prism")
    try:
        with redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            words, _ = PrismJobServer(options).subprocess_cmd_and_endpoint()
    except (OSError, RuntimeError, ValueError) as error:
        cure = f"go install github.com/apache/beam/sdks/v2/go/cmd/prism@v{beam_version}"
        text = f"no Prism ({error}). Put it on the PATH ({cure}), or name it: -- --prism_location FILE"
        raise ConfigError((f"--runner prism: {text}",)) from None
    return [str(word) for word in words]
