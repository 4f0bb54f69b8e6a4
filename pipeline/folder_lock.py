"""One run at a time in a folder: two would mix their releases, of which neither's budget counts the other's."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from mechanisms.core.errors import ConfigError

#: Its file, which is there only while a run goes on, or where one was killed.
LOCK = ".lock"


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Keep other runs out of a folder until the block ends; the lock of a killed process is gone with it.

    Parameters
    ----------
    folder
        Where the run writes; made if it is not there.

    Raises
    ------
    ConfigError
        If a run is writing there; it names the process.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    with _locked(path) as file:
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _locked(path: Path) -> TextIO:
    """The file at a path, locked, and still the one that others find there."""
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            with file:
                file.seek(0)
                holder = file.read().strip() or "another process"
            text = f"output.path: {holder} is running in {path.parent}; wait for its end, or choose another folder"
            raise ConfigError((text,)) from None
        # Whoever held it may have removed it since it was opened.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()
