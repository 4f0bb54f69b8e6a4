"""Where a path in a configuration points to."""

from __future__ import annotations

import glob
import os
from pathlib import Path


def find(text: str, folder: Path | None) -> str | None:
    """Resolve an input path: from the working directory first, then from the configuration's folder.

    Parameters
    ----------
    text
        Path or glob pattern as written; an address with a scheme (``gs://…``) is taken as it is.
    folder
        Folder of the configuration file.

    Returns
    -------
    The path that exists, or None.

    Examples
    --------
    >>> find("gs://bucket/rides", None)
    'gs://bucket/rides'
    >>> find("no/such/file", None) is None
    True
    """
    if "://" in text:
        return text
    candidates = [text] if folder is None else [text, os.path.join(folder, text)]
    return next((path for path in candidates if exists(path)), None)


def exists(path: str) -> bool:
    """Whether a path, or anything that matches it as a pattern, is there."""
    if not path or "\0" in path:
        return False
    return os.path.exists(path) or (glob.has_magic(path) and any(True for _ in glob.iglob(path, recursive=True)))
