"""Typical instances of a plug-in, made from what its parameters declare."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, get_args, get_type_hints

from mechanisms.core.errors import ParameterError
from mechanisms.core.parameters import Checked, Parameter, parameters_of

T = TypeVar("T", bound=Checked)

#: Tried in this order for a parameter without a default.
WHOLE_NUMBERS = (3, 1, 2, 10, 100)
NUMBERS = (1.0, 0.5, 2.0, 10.0, 100.0)


def examples_of(cls: type[T]) -> tuple[T, ...]:
    """Instances with defaults and small allowed numbers, and one more for every other choice of a parameter.

    Raises
    ------
    ParameterError
        If a parameter without a default has neither choices nor a number that suits its bounds; then the plug-in
        must say itself what is typical, in a class method ``examples``.

    Examples
    --------
    >>> from mechanisms import get
    >>> [(e.w, e.noise) for e in examples_of(get("w_event_uniform"))]
    [(3, 'discrete_laplace'), (3, 'laplace'), (3, 'planar_laplace')]
    """
    hints = get_type_hints(cls)
    required = [f for f in dataclasses.fields(cls) if f.default is f.default_factory is dataclasses.MISSING]  # type: ignore[arg-type]
    declared = parameters_of(cls)
    first = cls(**{field.name: _example(field.name, declared[field.name], hints[field.name]) for field in required})
    others = [
        dataclasses.replace(first, **{name: choice})  # type: ignore[type-var]
        for name, parameter in declared.items()
        for choice in parameter.choices or ()
        if choice != getattr(first, name)
    ]
    return (first, *others)


def _example(name: str, declared: Parameter, hint: Any) -> Any:
    if declared.choices:
        return declared.choices[0]
    kinds = set(get_args(hint)) or {hint}
    candidates: tuple[float, ...] = NUMBERS if float in kinds else WHOLE_NUMBERS if int in kinds else ()
    for value in candidates:
        if declared.allows(value):
            return value
    raise ParameterError(name, None, "given by a class method `examples` of the plug-in")
