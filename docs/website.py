"""Hooks of MkDocs: pages in the folders of the repository, so that links lead where they lead on GitHub, and an API."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: Pages, and what pages link to.
PATTERNS = (
    "*.md",
    "CITATION.cff",
    "docs/**/*.md",
    "docs/**/*.css",
    "docs/**/*.svg",
    "docs/**/*.csv",
    "docs/**/*.bib",
    "reproductions/**/*.md",
    "reproductions/**/*.svg",
    "reproductions/**/*.csv",
    "reproductions/**/*.json",
    "reproductions/**/*.yaml",
    "docs/*.png",
    "configs/**/*.yaml",
    "examples/*",
)


#: What a program of one's own imports, and the chapter of the reference that it is in.
API = {
    "penstock": ("penstock", "penstock.beam", "penstock.testing"),
    "mechanisms": ("penstock.mechanisms",),
    "accountants": ("penstock.accountants",),
    "accountants_in_parts": (
        "penstock.accountants.correlation",
        "penstock.accountants.inference",
        "penstock.accountants.gaussian_process",
    ),
    "evaluation": ("penstock.evaluation", "penstock.evaluation.attacks"),
    "for_plug_ins": (
        "penstock.mechanisms.core",
        "penstock.pipeline.sources.base",
        "penstock.pipeline.spaces.base",
        "penstock.pipeline.windows.base",
        "penstock.pipeline.config.hidden_landmarks",
    ),
}


def reference(packages: tuple[str, ...]) -> str:
    """Markdown of one chapter: every public module of some packages, with what it defines.

    >>> print(reference(("penstock.beam",)))
    ::: penstock.beam
    """
    modules: list[str] = []
    for package in packages:
        folder = ROOT / package.replace(".", "/")
        inner = sorted(folder.glob("*.py")) if package != "penstock" else []
        modules.append(package)
        modules += [f"{package}.{path.stem}" for path in inner if not path.stem.startswith("_")]
    return "\n\n".join(f"::: {module}" for module in modules)


def menu(page: str) -> list[dict[str, Any]]:
    """Menu of the site: a page's headings, each with the pages that its list links to.

    >>> menu("## Tutorials\\n\\n* [Start](start.md): here\\n* [Home](../README.md)\\n")
    [{'Tutorials': [{'Start': 'docs/start.md'}, {'Home': 'README.md'}]}]
    """
    sections = re.split(r"^## (.+)$", page, flags=re.MULTILINE)[1:]
    return [
        {title: [{name: _from_root(target)} for name, target in re.findall(r"^\* \[(.+?)\]\((.+?\.md)\)", text, re.M)]}
        for title, text in zip(sections[::2], sections[1::2], strict=True)
    ]


def _from_root(target: str) -> str:
    return target.removeprefix("../") if target.startswith("../") else f"docs/{target}"


def slug(heading: str, separator: str) -> str:
    """Anchor of a heading, as GitHub makes it.

    >>> slug("What a run says: ε, and `penstock verify`", "-")
    'what-a-run-says-ε-and-penstock-verify'
    """
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    """Take the menu from the index page, and GitHub's anchors."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    api = [{name.replace("_", " "): f"docs/api/{name}.md"} for name in API]
    config.nav = [{"Overview": "README.md"}, {"All pages": "docs/README.md"}, *menu(index), {"API": api}]
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Let wide tables scroll by themselves, so that a page fits a phone.

    >>> on_page_content("<table><tr></tr></table>", None, None, None)
    '<div class="table-responsive"><table><tr></tr></table></div>'
    """
    return html.replace("<table", '<div class="table-responsive"><table').replace("</table>", "</table></div>")


def on_files(files: Any, config: Any) -> Any:
    """Take pages, and the files they link to, from where they lie in the repository."""
    from mkdocs.structure.files import File

    paths = sorted({path.relative_to(ROOT).as_posix() for pattern in PATTERNS for path in ROOT.glob(pattern)})
    mine = [file for file in files if file.src_dir == config.docs_dir]
    for file in mine:
        files.remove(file)
    for path in paths:
        files.append(File(path, str(ROOT), config.site_dir, config.use_directory_urls))
    for name, packages in API.items():
        text = f"# {name.replace('_', ' ')}\n\n{reference(packages)}\n"
        files.append(File.generated(config, f"docs/api/{name}.md", content=text))
    return files
