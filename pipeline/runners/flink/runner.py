"""Run a plan as a streaming job on Flink: submit, watch, cancel and resume the job and handle failures."""

from __future__ import annotations

import gc
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from apache_beam.version import __version__ as beam_version

from penstock.mechanisms.core.plugin import ConfigError, DataError
from penstock.pipeline.atomic import make_folder
from penstock.pipeline.config.plan import Plan
from penstock.pipeline.monitoring import logs, metrics
from penstock.pipeline.monitoring.server import LOOPBACK
from penstock.pipeline.output.manifest import counted_rows
from penstock.pipeline.runners.beam.jobs import ENDED, RENEWED, Outcome, free_port, submit
from penstock.pipeline.runners.beam.read import TURNS_PER_HOUR
from penstock.pipeline.runners.flink import jars
from penstock.pipeline.runners.flink.jars import FLINK
from penstock.pipeline.runners.flink.jobs import (
    UNKNOWN,
    FlinkMeasures,
    cancel_jobs,
    check_savepoint,
    checkpoints_folder,
    configure,
    initial_version,
    job_server,
    latest_checkpoint,
    mark_job,
    service_of,
)
from penstock.pipeline.runners.flink.renewal import Renewal
from penstock.pipeline.runners.shared import live_input, live_source

#: How far a streaming job can be spread out later, unless an option says otherwise.
MAX_PARALLELISM = 16
#: What is set where the command line does not; an empty text stands for a flag without a value.
DEFAULTS = {"flink_master": "[local]", "flink_version": FLINK, "parallelism": "2", "environment_type": "LOOPBACK"}
#: The same for endless input.
STREAMING = {
    "streaming": "",
    "checkpointing_interval": "5000",
    "max_bundle_time_mills": "200",
    "state_backend": "filesystem",
    # Otherwise Flink keeps what a bundle puts out at a checkpoint until the next bundle, but not the watermark.
    "finish_bundle_before_checkpointing": "",
    "externalized_checkpoints_enabled": "",
    "retain_externalized_checkpoints_on_cancellation": "",
}


def run(plan: Plan, beam_options: Sequence[str] = ()) -> bool:
    """Run a plan on Flink. The parts of the output files are merged afterwards.

    ``plan`` is as `pipeline.runners.beam.distributed` makes it; a resumed stream goes on from the latest checkpoint.
    Without ``--job_endpoint`` among the options a job server is started from the cached jars. Returns whether the run
    came to its end; otherwise it was stopped: by SIGINT or SIGTERM, or in Flink, with a savepoint. Raises
    `PenstockError` if the configuration cannot be run, a step failed for good, or the job was lost (`--resume` goes
    on).
    """
    given = _options_by_name(beam_options)
    server = None if "job_endpoint" in given else jars.server(given.get("flink_job_server_jar"), initial_version(plan))
    version, words = server or (None, None)
    logs.event("runner of Flink", version=version or UNKNOWN, beam=beam_version)
    rest_port: int | None = None
    service = service_of((DEFAULTS | given)["flink_master"])
    if service is None and not ({"job_endpoint", "flink_conf_dir"} & given.keys() or "FLINK_CONF_DIR" in os.environ):
        # An embedded Flink whose configuration is penstock's.
        rest_port = free_port()
        service = f"http://{LOOPBACK}:{rest_port}"
    is_old = version is None or not jars.keeps_one_state(version)
    # Jobs are found by their checkpoints in the folder of the run, and go on from the latest one there.
    can_renew = service is not None and not {"savepoint_path", "state_backend_storage_path"} & given.keys()
    if plan.streaming:
        mark_job(plan, version or UNKNOWN)
        if is_old and not can_renew:
            logs.caution(_turn_limit_caution(version))
    made: Path | None = None
    with _engine(plan, given, words, rest_port) as endpoint:
        while True:
            renewal = Renewal(plan, service) if service and plan.streaming and is_old and can_renew else None
            outcome = _submit(plan, endpoint, beam_options, renewal)
            if made is not None and made != latest_checkpoint(plan):
                shutil.rmtree(made, ignore_errors=True)  # the job that it began has made checkpoints of its own
            if outcome != RENEWED:
                return outcome == ENDED
            made, plan = latest_checkpoint(plan), replace(plan, resumed=True)
            if words is not None:  # the next job begins sooner in a job server that has had one
                configure(_server_folder(plan), _checkpoint_uri(plan, given), rest_port)
            gc.collect()  # readers of the job before hold their connections, and are in cycles


#: What Flink's log says of jobs that have ended, and what it means.
_REASONS = {
    "Too many states": (
        "Flink cannot write a checkpoint any more: its readers have had more than 32,767 turns, and --resume "
        "would fail again. Releases and charges are kept; begin another run on the same ledger, in another "
        "folder, from the first window not released (documentation: Flink)"
    ),
    "No receiver found for timer|Cannot map checkpoint/savepoint state|StateMigrationException": (
        "Flink cannot go on from this checkpoint: it was made by another version of penstock, of Beam or of its "
        "runner, or by another run. Take the version that made it, or begin another run on the same ledger, in another "
        "folder, from the first window not released (documentation: Flink)"
    ),
}


@contextmanager
def _engine(plan: Plan, given: dict[str, str], words: Sequence[str] | None, rest_port: int | None) -> Iterator[str]:
    """Yield the given endpoint, or start a job server with ``words`` for the block and yield its endpoint."""
    if words is None:
        yield given["job_endpoint"]
        return
    folder, restored = _server_folder(plan), _checkpoint_uri(plan, given)
    log = folder / "job_server.log"
    begun = log.stat().st_size if log.exists() else 0
    try:
        with job_server((DEFAULTS | given)["flink_master"], folder, words, restored, rest_port) as endpoint:
            yield endpoint
    except DataError as error:
        printed = log.read_bytes()[begun:].decode(errors="replace") if plan.streaming and log.exists() else ""
        for pattern, reason in _REASONS.items():
            if re.search(pattern, printed):
                raise DataError(reason) from error
        raise


def _server_folder(plan: Plan) -> Path:
    return checkpoints_folder(plan) / "job_server"


def check_ready(plan: Plan, beam_options: Sequence[str]) -> None:
    """Raise `ConfigError` if the job server cannot run or resume, or `DataError` if input to be read again is gone."""
    given = _options_by_name(beam_options)
    jar = given.get("flink_job_server_jar")
    if "job_endpoint" not in given:
        jars.java()
        if jar is None:
            jars.version()
        elif not Path(jar).is_file():
            raise ConfigError((f"--flink_job_server_jar: there is no file {jar}",))
    if "savepoint_path" in given:
        check_savepoint(plan, given["savepoint_path"])
    if not (plan.resumed and plan.streaming):
        return
    _checkpoint_uri(plan, given)
    if latest_checkpoint(plan) is None and "savepoint_path" not in given:
        live_source(plan).check_beginning(live_input(plan), counted_rows(plan).offsets)


def _checkpoint_uri(plan: Plan, given: dict[str, str]) -> str | None:
    """Return the URI of the checkpoint from which an embedded Flink resumes, or None on a cluster or if there is none.

    Flink reads it from its configuration, and Beam's option for it is for clusters alone: with a configuration that is
    not penstock's the job would begin anew, whatever the option says. That is a `ConfigError`.
    """
    if service_of((DEFAULTS | given)["flink_master"]) is not None:
        return None
    checkpoint = latest_checkpoint(plan) if plan.resumed and plan.streaming else None
    path = given.get("savepoint_path") or (checkpoint.as_uri() if checkpoint else None)
    elsewhere = [f"--{name}" for name in ("job_endpoint", "flink_conf_dir") if name in given]
    elsewhere += ["$FLINK_CONF_DIR"] if "FLINK_CONF_DIR" in os.environ else []
    if path is not None and elsewhere:
        text = f"an embedded Flink with {elsewhere[0]} restores no checkpoint, and would read the input from its"
        raise ConfigError((f"--resume: {text} beginning again; leave that out, or name a cluster with --flink_master",))
    return path


def _turn_limit_caution(version: str | None) -> str:
    """Return a warning about a runner that accumulates one state per turn of a reader."""
    runner = f"Beam's Flink runner {version}" if version else "Beam's Flink runner, if it is older than 2.76,"
    return (
        f"{runner} keeps a state for every turn of a reader, and with 32,767 of them in one slot the job ends and "
        f"cannot be resumed: after about {32_767 / TURNS_PER_HOUR:,.0f} hours, divided by the readers that share a "
        "slot. This job cannot be renewed before that, since its checkpoints are elsewhere, or the configuration of "
        "its Flink is not penstock's: stop it in time and --resume, or take runner 2.76 or later, which keeps one "
        "state (documentation: Flink)"
    )


def options_of(plan: Plan, endpoint: str, beam_options: Sequence[str]) -> list[str]:
    """Return the job options completed with defaults."""
    given = _options_by_name(beam_options)
    defaults = {"job_endpoint": endpoint, "job_name": plan.config.name, **DEFAULTS}
    if plan.streaming:
        defaults |= STREAMING | {"state_backend_storage_path": checkpoints_folder(plan).as_uri()}
    if given.get("environment_type", defaults["environment_type"]) == "EXTERNAL" and "environment_config" not in given:
        defaults["environment_config"] = "localhost:50000"
    if plan.resumed and plan.streaming and (checkpoint := latest_checkpoint(plan)) is not None:
        defaults["savepoint_path"] = checkpoint.as_uri()
        logs.event("going on from a checkpoint of Flink", checkpoint=checkpoint.name)
    elif plan.streaming:
        if plan.resumed and "savepoint_path" not in given:
            logs.event("no checkpoint of Flink in the folder of the run: reading the input from its beginning")
        # Flink's own 128 cost each state of a reader eight times the memory; a resumed job keeps what it has.
        defaults["max_parallelism"] = str(max(MAX_PARALLELISM, int(given.get("parallelism", defaults["parallelism"]))))
    flags = [f"--{name}={value}" if value else f"--{name}" for name, value in defaults.items() if name not in given]
    return [*flags, *beam_options]


def _options_by_name(beam_options: Sequence[str]) -> dict[str, str]:
    """Return the options by name, with an empty value for each flag."""
    options, name = dict[str, str](), ""
    for word in beam_options:
        if word.startswith("--"):
            name, _, options[name] = word.removeprefix("--").partition("=")
        elif name:
            options[name] = word
    return options


def _submit(plan: Plan, endpoint: str, beam_options: Sequence[str], renewal: Renewal | None = None) -> Outcome:
    make_folder(checkpoints_folder(plan))
    given = DEFAULTS | _options_by_name(beam_options)
    if plan.resumed:
        cancel_jobs(plan, given["flink_master"])  # it outlives its driver, and its latest checkpoint is needed
    measures = None if given["environment_type"] == "LOOPBACK" else FlinkMeasures(plan, given["flink_master"])

    def look() -> None:
        """Record the size of the latest checkpoint and the metrics of remote workers."""
        if (checkpoint := latest_checkpoint(plan)) is not None:
            metrics.record(metrics.CHECKPOINT_BYTES, sum(path.stat().st_size for path in checkpoint.iterdir()))
        if measures is not None:
            measures.look()

    try:
        return submit(plan, options_of(plan, endpoint, beam_options), "Flink", look, renewal)
    finally:
        cancel_jobs(plan, given["flink_master"])
        if measures is not None:
            measures.delays()
