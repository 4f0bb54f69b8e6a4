"""Readme and license of the package; also what Beam's ``--setup_file`` takes. All else is in pyproject.toml."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent


def description(pages: str) -> str:
    """The README with links that lead to ``pages``, or without where that is empty."""
    readme = HERE / "README.md"

    def linked(match: re.Match[str]) -> str:
        image, label, target = match.groups()
        if re.match(r"[a-z]+:|#", target):
            return match[0]
        return f"{image}[{label}]({pages}{target})" if pages else "" if image else label

    return re.sub(r"(!?)\[([^]]*)\]\(([^)]*)\)", linked, readme.read_text("utf-8")) if readme.exists() else ""


if __name__ == "__main__":
    stated = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))
    pages = stated["project"].get("urls", {}).get("Documentation", "")
    setup(license="Apache-2.0", long_description=description(pages), long_description_content_type="text/markdown")
