"""Rewrite the generated parts of the documentation: README's table, configuration reference, glossary.

``python docs/generate.py`` rewrites them, ``python docs/generate.py --check`` fails where they are not current.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.pipeline.cli import inspect

ROOT = Path(__file__).resolve().parent.parent


def readme(root: Path) -> tuple[Path, str]:
    """The README with a current table of accountants between its markers."""
    path = root / "README.md"
    text = path.read_text(encoding="utf-8")
    table = f"<!-- accountants -->\n{inspect.markdown('accountants')}\n<!-- end -->"
    text, n = re.subn(r"<!-- accountants -->.*?<!-- end -->", lambda _: table, text, count=1, flags=re.DOTALL)
    if n != 1:
        raise SystemExit(f"{path}: no table of accountants; it must be between <!-- accountants --> and <!-- end -->")
    return path, text


def configuration(root: Path) -> tuple[Path, str]:
    """The configuration page with a current reference below its marker."""
    from penstock.pipeline.config.schema import with_reference

    path = root / "docs" / "configuration.md"
    return path, with_reference(path.read_text(encoding="utf-8"))


def glossary(root: Path) -> tuple[Path, str]:
    """The glossary with the terms that reports explain."""
    from penstock.pipeline.reporting.glossary import markdown

    path = root / "docs" / "glossary.md"
    block = f"<!-- glossary -->\n{markdown()}\n<!-- end -->"
    return path, re.sub(r"<!-- glossary -->.*<!-- end -->", lambda _: block, path.read_text("utf-8"), flags=re.DOTALL)


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Write or check all generated parts."""
    current = (readme(root), configuration(root), glossary(root))
    stale = [(path, text) for path, text in current if not path.exists() or path.read_text(encoding="utf-8") != text]
    for path, text in stale:
        if "--check" in arguments:
            print(f"{path.relative_to(root)} is not current; run: make docs")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.relative_to(root)}")
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
