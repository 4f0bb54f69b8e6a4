"""The name that somebody probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The most similar of some names, None if none is similar; of equally similar ones that with the same letters.

    Examples
    --------
    >>> nearest("mea", ["mre", "mae", "pearson"]), nearest("pearsn", ["mae", "pearson"]), nearest("x", ["mae"])
    ('mae', 'pearson', None)
    """
    known = list(names)
    found = difflib.get_close_matches(word, known, n=max(1, len(known)))
    letters = sorted(word)
    # stable: equally similar names stay in the order of the library
    found.sort(key=lambda name: (-difflib.SequenceMatcher(None, name, word).ratio(), sorted(name) != letters))
    return found[0] if found else None
