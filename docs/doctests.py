"""Extension of Griffe, which reads the docstrings of the API reference."""

from __future__ import annotations

from typing import Any

from griffe import Extension, Object


class Doctests(Extension):
    """Begin a section of examples where a docstring shows one without a heading, so that it is set as code."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Add the heading to the docstring of a module, class or function."""
        if obj.docstring and "Examples\n-" not in obj.docstring.value:
            text, mark, example = obj.docstring.value.partition("\n>>> ")
            if mark:
                obj.docstring.value = f"{text.rstrip()}\n\nExamples\n--------{mark}{example}"
