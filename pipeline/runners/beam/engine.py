"""Identify the engine behind a job endpoint before starting a stream on it.

A stream may be released on an engine only that holds every step at the minimum of its readers' watermarks: with
another one windows are final before their rows have been read. Beam's job service does not say what it is, but:

* A job server in Java describes the options that it takes, each with the interface that defines it
  (``InMemoryJobService.describePipelineOptions``), those of its engine among them.
* Prism describes none (``DescribePipelineOptions`` of its ``management.go``), and has words of its own for a job that
  it does not know (``GetState``, in the same file).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import grpc
from apache_beam.options.pipeline_options import PipelineOptions, PortableOptions
from apache_beam.portability.api import beam_job_api_pb2, beam_job_api_pb2_grpc

from penstock.mechanisms.core.plugin import ConfigError, DataError

#: Engines that were shown to hold the minimum of their readers' watermarks (``tests/integration/test_kafka_flink.py``).
VERIFIED = ("Flink",)
#: Option that has Prism process the elements of a key in one bundle at a time, whoever started it; others ignore it.
UNSPLIT = "--experiments=prism_disable_sdf_split"
_ENGINE = re.compile(r"org\.apache\.beam\.runners\.(\w+)\.\w*PipelineOptions")
_NO_SUCH_JOB, _PRISM = "penstock", "job with id penstock not found"
#: Beam's own server, in the process of the driver.
_EMBEDDED = "embed"
_SECONDS = 30.0


def engine_behind(endpoint: str, *, seconds: float = _SECONDS) -> str:
    """Return the name of the engine behind a job endpoint, such as ``Flink`` or ``unknown``. Raises `DataError` if
    it does not respond.
    """
    if endpoint == _EMBEDDED:
        return "Beam's in-process runner"
    with grpc.insecure_channel(endpoint) as channel:
        service = beam_job_api_pb2_grpc.JobServiceStub(channel)
        try:
            options = service.DescribePipelineOptions(
                beam_job_api_pb2.DescribePipelineOptionsRequest(), timeout=seconds, wait_for_ready=True
            ).options
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                return "unknown"
            raise DataError(f"--job_endpoint: no job service answers at {endpoint} ({error.code().name})") from None
        if names := sorted({match[1].capitalize() for option in options if (match := _ENGINE.fullmatch(option.group))}):
            return " or ".join(names)
        try:
            service.GetState(beam_job_api_pb2.GetJobStateRequest(job_id=_NO_SUCH_JOB), timeout=seconds)
        except grpc.RpcError as error:
            return "Prism" if error.details() == _PRISM else "unknown"
    return "unknown"


def unverified_engine(beam_options: Sequence[str], is_allowed: bool) -> str | None:
    """Return the name of the engine behind ``--job_endpoint`` if it is unverified. Raises `ConfigError` unless
    ``is_allowed``.
    """
    endpoint = PipelineOptions(list(beam_options), save_main_session=False).view_as(PortableOptions).job_endpoint
    if endpoint is None or (engine := engine_behind(endpoint)) in VERIFIED:
        return None
    if not is_allowed:
        text = (
            f"the engine behind it is {engine}, which was never shown to hold the minimum of its readers' watermarks: "
            "windows may be released and charged before their rows are read. Take the job server of Flink, or "
            "--runner prism, which has one reader, or acknowledge this with --unverified-engine, which the manifests "
            "will say"
        )
        raise ConfigError((f"--job_endpoint {endpoint}: {text}",))
    return engine
