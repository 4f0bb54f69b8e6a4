"""The one change to another project's code: a class of Beam's Flink runner, which no endless stream can do without.

Which: `HANDLER`, in ``beam-runners-java-fn-execution``. Why: it keeps what a reader leaves for its next turn under a
new name each time, and Flink keeps every name for ever: 22 kB of checkpoint a second until, at 32,767 names, the job
fails (https://github.com/apache/beam/issues/27648). Every splittable step that defers is concerned; no option avoids
it. A reader leaves one rest at a time, so one name is enough: ``this.idGenerator.getId()`` becomes a constant and
no-ops. Which version: 2.62.0. Beam has merged a remedy (https://github.com/apache/beam/pull/39191); a jar that does
not hold these bytes is left as it is.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

HANDLER = (
    "org/apache/beam/runners/fnexecution/control/BundleCheckpointHandlers$StateAndTimerBundleCheckpointHandler.class"
)
NEW_NAME, ONE_NAME = bytes.fromhex("2ab40003b900120100"), bytes.fromhex("1209") + bytes(7)


def keep_one_name(folder: Path) -> None:
    """Change the class in the jars of a folder, where it has the fault."""
    for path in folder.glob("beam-runners-java-fn-execution-*.jar"):
        with zipfile.ZipFile(path) as jar:
            if NEW_NAME not in jar.read(HANDLER):
                continue
            members = [(info, jar.read(info)) for info in jar.infolist()]
        with zipfile.ZipFile(path, "w") as jar:
            for info, data in members:
                info.compress_type = zipfile.ZIP_STORED  # the same bytes whatever would compress here
                jar.writestr(info, data.replace(NEW_NAME, ONE_NAME) if info.filename == HANDLER else data)
