"""Run the code blocks of the pages that show their output, and compare or rewrite what stands below them.

``python docs/pages.py`` rewrites the outputs; ``python docs/pages.py --check`` fails where one is not current. A page's
blocks of Python run in one process, one after the other; those of the shell each in a process of their own; all in an
empty folder with the repository's ``configs``. What a page shows must not depend on time, load or the machine.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("library.md", "getting_started.md", "daily.md")
_BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


def current(page: str) -> str:
    """Text of a page, with the outputs that its blocks have now.

    Raises
    ------
    RuntimeError
        If a block fails; with the block and what it said.
    """
    names: dict[str, Any] = {"__name__": "page"}

    def shown(match: re.Match[str]) -> str:
        """Run a block and append its output."""
        language, code, has_output = match[1], match[2], match[3]
        out = _python(code, names) if language == "python" else _shell(code)
        block = f"```{language}\n{code}```\n"
        return f"{block}\n```text\n{out.rstrip()}\n```" if has_output else block

    with _in_empty_folder():
        return _BLOCK.sub(shown, page)


@contextlib.contextmanager
def _in_empty_folder() -> Iterator[None]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("configs").symlink_to(ROOT / "configs")
        Path("examples").symlink_to(ROOT / "examples")
        try:
            yield
        finally:
            os.chdir(before)


def _python(code: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "page", "exec"), names)
    return out.getvalue()


def _shell(code: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "XDG_STATE_HOME": str(Path("state").absolute())}
    done = subprocess.run(["bash", "-euc", code], capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode} of\n{code}\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> int:
    """Rewrite or check the outputs of all pages."""
    stale = 0
    for name in PAGES:
        path = ROOT / "docs" / name
        before = path.read_text(encoding="utf-8")
        after = current(before)
        if before == after:
            continue
        stale += 1
        if "--check" in sys.argv[1:]:
            print(f"docs/{name} is not current; run: python docs/pages.py")
        else:
            path.write_text(after, encoding="utf-8")
            print(f"wrote docs/{name}")
    return 1 if stale and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    sys.exit(main())
