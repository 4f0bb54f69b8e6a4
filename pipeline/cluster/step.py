"""What all steps of a cluster have in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any

import apache_beam as beam
from apache_beam.internal import pickler

from pipeline.output.redaction import without_words
from pipeline.runners.beam.metrics import report_to_beam
from pipeline.runners.flink.runner import is_lasting, note_failure

if TYPE_CHECKING:
    from pipeline.config.plan import Plan


class ClusterStep(beam.DoFn):  # type: ignore[misc]
    """A step that knows the plan; a deployment's plan travels without its key, which every worker reads for itself.

    Parameters
    ----------
    plan
        The run.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"folder": self.plan.folder, "plan": pickler.dumps(self.plan)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        folder = state.pop("folder")
        try:
            plan = pickler.loads(state["plan"])
        except Exception as error:  # a key that is not there, or another; a plug-in that is not installed
            note_failure(folder, error)
            raise
        self.__dict__.update(state | {"plan": plan})
        report_to_beam()


def discreetly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a `ClusterStep` whose errors end the run where they last, and quote no row in a deployment.

    The engine tries a step that failed again and again, and writes what it said to its logs.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> class Step:
    ...     plan = SimpleNamespace(config=SimpleNamespace(mode="deployment"))
    ...     @discreetly
    ...     def process(self, row):
    ...         yield float(row)
    >>> list(Step().process("51.4778, home"))
    Traceback (most recent call last):
    pipeline.output.redaction.UnforeseenError: ValueError at ...; a deployment does not repeat its words, ...
    """

    def said(step: Any, error: Exception) -> Exception:
        told = without_words(error) if step.plan.config.mode == "deployment" else error
        if is_lasting(error):
            note_failure(step.plan.folder, told)
        return told

    @wraps(method)
    def yielding(self: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        try:
            yield from method(self, *args, **kwargs)
        except Exception as error:
            if (told := said(self, error)) is error:
                raise
            raise told from None

    @wraps(method)
    def returning(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            if (told := said(self, error)) is error:
                raise
            raise told from None

    return yielding if inspect.isgeneratorfunction(method) else returning
