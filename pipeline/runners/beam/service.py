"""Run a plan as a streaming job on a managed service such as Dataflow: submit, update and watch the job."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import GoogleCloudOptions
from apache_beam.runners.runner import PipelineState

from penstock.mechanisms.core.plugin import DataError
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.runners.beam.graph import build, has_ended, write_final_summaries
from penstock.pipeline.runners.failure import forget_failure, raise_failure
from penstock.pipeline.runners.flink.jobs import mark_job
from penstock.pipeline.runners.shared import stopping

#: Seconds between two looks at the job.
PATIENCE = 5.0


def run_service(plan: Plan, pipeline: beam.Pipeline) -> bool:
    """Run a stream as a job on a managed service and return whether it reached the end of the stream.

    The job holds what was read and is not counted yet. So it is cancelled only when everything is released: where this
    process is stopped, or a step fails, it stays. A resumed run updates it, which hands its state on. ``pipeline`` has
    the service's runner, `options_of` the plan, and nothing in it yet.
    """
    mark_job(plan)
    forget_failure(plan.folder)
    build(pipeline, plan)
    job, stopped = pipeline.run(), threading.Event()
    if pipeline.options.view_as(GoogleCloudOptions).template_location is not None:
        return False  # the service starts the job that is described in a file once the launcher has ended
    with stopping(stopped.set):
        while not (ended := has_ended(plan)) and not stopped.is_set():
            raise_failure(plan.folder)
            if PipelineState.is_terminal(state := job.state):
                raise DataError(
                    f"the job has ended ({state}) before the run: what it had read and not counted yet is lost. "
                    "Its log says why; begin another run on the same ledger, from the first window not released"
                )
            time.sleep(PATIENCE)
        if ended:
            job.cancel()
    if ended:
        write_final_summaries(plan)
    return ended


def options_of(plan: Plan, beam_options: Sequence[str]) -> list[str]:
    """Return the job options, adding defaults for streaming, updates and the name of the job to update.

    >>> from types import SimpleNamespace
    >>> plan = SimpleNamespace(resumed=True, config=SimpleNamespace(name="Footfall 2026"))
    >>> options_of(plan, ["--region=europe-west1"])
    ['--streaming', '--enable_streaming_engine', '--job_name=footfall-2026', '--update', '--region=europe-west1']
    """
    letters = [letter if letter.isascii() and letter.isalnum() else "-" for letter in plan.config.name.lower()]
    defaults = ["--streaming", "--enable_streaming_engine", f"--job_name={''.join(letters).strip('-')}"]
    defaults += ["--update"] if plan.resumed else []
    given = {word.partition("=")[0] for word in beam_options}
    return [*(option for option in defaults if option.partition("=")[0] not in given), *beam_options]
