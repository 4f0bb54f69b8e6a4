"""``penstock run``: from a configuration to its files."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from pipeline.commands.common import add_configuration, print_json
from pipeline.process import apart

HELP = "run a configuration: read, count, release, account, write"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    add_configuration(parser)
    parser.add_argument("--out", metavar="DIR", help="write here instead of output.path")
    parser.add_argument("--runner", default="direct", help="direct (default), flink, or another runner of Beam")
    parser.add_argument("--shards", type=int, default=1, metavar="N", help="split users while counting (same result)")
    parser.add_argument("--resume", action="store_true", help="continue a run that was killed or interrupted")
    parser.add_argument("--quiet", action="store_true", help="no progress and no summary")
    parser.add_argument("--watch", action="store_true", help="serve the report on this machine while the run goes on")
    parser.add_argument("--log", choices=("json", "text"), help="log events on standard error, in this form")
    parser.add_argument("--metrics-port", type=int, metavar="PORT", help="serve /metrics (Prometheus) and /healthz")
    parser.add_argument(
        "--metrics-address", default="127.0.0.1", metavar="IP", help="where; beyond this machine public measures only"
    )
    parser.epilog = "Words after -- are passed on to Beam."


def execute(arguments: argparse.Namespace) -> int:
    """Run; the exit code is the run's."""
    from pipeline.configuration.run import load
    from pipeline.logs import logging_to
    from pipeline.process import take_from_jemalloc
    from pipeline.run import run
    from pipeline.source import LiveSource
    from pipeline.terminal import show_progress, summary

    take_from_jemalloc()
    config = load(arguments.config, arguments.set)
    quiet = arguments.quiet or arguments.json or arguments.log
    with ExitStack() as services:
        services.enter_context(logging_to(style=arguments.log, deployment=config.mode == "deployment"))
        if arguments.metrics_port is not None:
            from pipeline.metrics_server import serve_metrics

            services.enter_context(serve_metrics(arguments.metrics_port, arguments.metrics_address))
        if arguments.watch:
            from pipeline.reporting.live import watch

            services.enter_context(watch(Path(arguments.out or config.output.path)))
        services.enter_context(show_progress(enabled=not quiet and sys.stderr.isatty()))
        options = (arguments.runner, arguments.beam_options, arguments.shards, arguments.resume)
        call = partial(run, config, arguments.out, *options)
        # A stream and a job elsewhere are told to end, and do so in order; all else ends where it is.
        is_told = arguments.runner != "direct" or isinstance(config.source, LiveSource)
        result = call() if is_told else apart(call)
    if arguments.json:
        print_json({"exit_code": result.exit_code, "folder": str(result.folder), **result.manifest})
    elif not arguments.quiet:
        print(summary(result))
    return result.exit_code
