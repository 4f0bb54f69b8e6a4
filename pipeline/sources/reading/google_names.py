"""Full names of Google's services: which part of one is wrong, and what would be right."""

from __future__ import annotations

import re
from collections.abc import Mapping

#: What a part of a name has to be: a pattern, and the same in words.
_RULES = {
    "PROJECT": (
        r"([a-z0-9.-]+\.[a-z]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]",
        "a project id: 6 to 30 lower-case letters, digits and hyphens, a letter first and no hyphen last",
    ),
    "TOPIC": (r"[A-Za-z][A-Za-z0-9._~+%-]{2,254}", "3 to 255 letters, digits and . _ ~ + % -, a letter first"),
    "DATASET": (r"\w{1,1024}", "1 to 1,024 letters, digits and underscores"),
    "TABLE": (r"[\w-]{1,1024}", "1 to 1,024 letters, digits, underscores and hyphens"),
}
_RULES["SUBSCRIPTION"] = _RULES["TOPIC"]


def flaw(name: str, form: str) -> str | None:
    """What a name must be that is not of a form; None for one that is.

    ``form``: the parts of a full name in capitals, such as ``projects/PROJECT/topics/TOPIC``.

    >>> flaw("projects/city-1/topics/footfall", "projects/PROJECT/topics/TOPIC")
    >>> flaw("footfall", "projects/PROJECT/topics/TOPIC")
    'projects/PROJECT/topics/TOPIC'
    >>> flaw("city.open.footfall", "PROJECT.DATASET.TABLE")
    "PROJECT.DATASET.TABLE with PROJECT, here 'city', a project id: 6 to 30 lower-case letters, digits and hyphens, ..."
    """
    # As much as possible for the first part: a project may have a domain, with dots.
    found = re.fullmatch(re.sub("[A-Z]+", lambda part: f"(?P<{part[0]}>[^/]*)", re.escape(form)), name)
    return form if found is None else _wrong_part(found.groupdict(), form)


def _wrong_part(parts: Mapping[str, str], form: str) -> str | None:
    for part, value in parts.items():
        rule, words = _RULES[part]
        if not re.fullmatch(rule, value):
            return f"{form} with {part}, here {value!r}, {words}"
    return None
