"""What all steps of a cluster have in common."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import apache_beam as beam

from pipeline.discretion import without_words
from pipeline.plan import Plan


class ClusterStep(beam.DoFn):  # type: ignore[misc]
    """A step that knows the plan; a deployment's plan travels without its key, which every worker reads for itself.

    Parameters
    ----------
    plan
        The run.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan


def discreetly(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a `ClusterStep` whose errors quote no row in a deployment: the engine writes them to its logs.

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
    pipeline.discretion.UnforeseenError: ValueError at ...; a deployment does not repeat its words, ...
    """

    def said(step: Any, error: Exception) -> Exception:
        return without_words(error) if step.plan.config.mode == "deployment" else error

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
