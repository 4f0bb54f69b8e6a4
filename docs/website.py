"""Hooks of MkDocs: pages as they lie in the repository, links as on GitHub, and references: commands and API."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from functools import partial
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


#: Pages that only the site has, made from the code.
COMMAND_LINE, BY_UNIT = "docs/command_line.md", "docs/mechanisms_by_unit.md"

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
        "penstock.accountants.core",
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


class Help(argparse.ArgumentParser):
    """Parser that knows the parsers of the words that may follow."""

    def __init__(self, **options: Any) -> None:
        self.following: dict[str, Help] = {}
        super().__init__(**options, formatter_class=partial(argparse.HelpFormatter, width=80))

    def add_subparsers(self, **options: Any) -> Any:
        """Add the parsers of further words, and keep them."""
        actions = super().add_subparsers(**options)
        self.following = actions.choices
        return actions

    def chapters(self, level: str = "##") -> Iterator[str]:
        """Yield a chapter for each command and each further word: what ``--help`` prints."""
        yield f"{level} {self.prog}\n\n```text\n{self.format_help()}```"
        for parser in self.following.values():
            yield from parser.chapters(f"{level}#")


def command_line() -> str:
    """Markdown of the reference of the command line, made from the parsers themselves.

    >>> "--unverified-engine" in command_line()
    True
    """
    from penstock.pipeline.cli.main import COMMANDS

    text = "# Options of every command\n\nWhat `penstock COMMAND --help` prints."
    for name, command in COMMANDS.items():
        parser = Help(prog=f"penstock {name}", description=command.help)
        parser.add_argument("--json", action="store_true", help="print JSON for machines")
        command.configure(parser)
        text = "\n\n".join((text, *parser.chapters()))
    return text + "\n"


def by_unit() -> str:
    """Markdown of all mechanisms by what they protect, as each states it.

    >>> print(*(line for line in by_unit().splitlines() if line.startswith("| `fpa`")))
    | `fpa` | Keep each ... | ε-differential privacy per block | Rastogi and Nath 2010, theorem 4.1, ... |
    """
    from penstock.pipeline.cli.inspect import entries

    chapters: dict[str, list[str]] = {}
    for row in sorted(entries("mechanisms"), key=lambda row: row["unit"] == "none"):
        line = " | ".join([f"`{row['name']}`", row["promise"], row["guarantee"], row["theorem"]])
        chapters.setdefault(row["unit"], []).append(f"| {line} |")
    head = "| mechanism | what it does | guarantee | theorem |\n| --- | --- | --- | --- |"
    text = "# Mechanisms by what they protect\n\nWhat `penstock list mechanisms --json` prints: with the default noise."
    for unit, lines in chapters.items():
        title = "Nothing by themselves" if unit == "none" else unit[0].upper() + unit[1:]
        text += "\n\n" + "\n".join([f"## {title}\n", head, *lines])
    return text + "\n"


def menu(page: str) -> list[dict[str, Any]]:
    """Menu of the site: a page's headings, each with the pages that its list links to.

    >>> menu("## Tutorials\\n\\n* [Start](start.md): here\\n* [Home](../README.md)\\n")
    [{'Tutorials': [{'Start': 'docs/start.md'}, {'Home': 'README.md'}]}]
    >>> menu("## Reference\\n\\n* [Commands](../README.md#commands)\\n")
    [{'Reference': [{'Commands': 'part:README.md#commands'}]}]
    """
    sections = re.split(r"^## (.+)$", page, flags=re.MULTILINE)[1:]
    return [
        {
            title: [
                {name: _from_root(target)}
                for name, target in re.findall(r"^\* \[(.+?)\]\((.+?\.md(?:#[\w-]+)?)\)", text, re.M)
            ]
        }
        for title, text in zip(sections[::2], sections[1::2], strict=True)
    ]


def _from_root(target: str) -> str:
    path = target.removeprefix("../") if target.startswith("../") else f"docs/{target}"
    return f"part:{path}" if "#" in path else path


def slug(heading: str, separator: str) -> str:
    """Anchor of a heading, as GitHub makes it, from its first letter on: scripts of the theme stop at a digit.

    >>> slug("What a run says: ε, and `penstock verify`", "-")
    'what-a-run-says-ε-and-penstock-verify'
    >>> slug("1. Draft a configuration", "-")
    'draft-a-configuration'
    """
    return re.sub(r"^\d+\W+|[^\w\- ]", "", heading.lower()).replace(" ", separator)


def on_config(config: Any) -> Any:
    """Take the menu from the index page, and GitHub's anchors."""
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    api = [{name.replace("_", " "): f"docs/api/{name}.md"} for name in API]
    chapters = menu(index)
    for chapter in chapters:
        for entries in (entries for title, entries in chapter.items() if title == "Reference"):
            entries[2:2] = [{"Options of every command": COMMAND_LINE}, {"Mechanisms by what they protect": BY_UNIT}]
    config.nav = [{"Overview": "README.md"}, {"All pages": "docs/README.md"}, *chapters, {"API": api}]
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def on_nav(nav: Any, config: Any, files: Any) -> Any:
    """Let what the menu calls a part of a page lead to its heading."""
    for section in nav.items:
        for link in section.children or ():
            if link.is_link and link.url.startswith("part:"):
                path, heading = link.url.removeprefix("part:").split("#")
                link.url = f"{files.get_file_from_path(path).url}#{heading}"
    return nav


#: The theme's button of the headings on a phone, an arrow that nothing explains.
ARROW = '<span class="fa fa-angle-down"></span>'


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Add the two style sheets for code that the theme's switch between light and dark expects, and a word to the
    button that opens the headings on a phone.

    >>> on_post_page("<head></head>" + ARROW, None, None)
    '<head><style id="hljs-light"></style><style id="hljs-dark"></style></head>On this page <span class="fa fa-angle...'
    """
    styles = '<style id="hljs-light"></style><style id="hljs-dark"></style></head>'
    return output.replace("</head>", styles, 1).replace(ARROW, f"On this page {ARROW}", 1)


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    """Do the same for the page that says that there is none."""
    return on_post_page(output_content, None, config)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let the names of chapters on the page of the API lead to them.

    >>> from types import SimpleNamespace
    >>> page = SimpleNamespace(file=SimpleNamespace(src_uri="docs/api.md"))
    >>> on_page_markdown("* **for plug ins**: contracts", page, None, None)
    '* [for plug ins](api/for_plug_ins.md): contracts'
    """
    if page.file.src_uri != "docs/api.md":
        return markdown
    return re.sub(r"\*\*(.+?)\*\*", lambda name: f"[{name[1]}](api/{name[1].replace(' ', '_')}.md)", markdown)


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
    for name, text in ((COMMAND_LINE, command_line()), (BY_UNIT, by_unit())):
        files.append(File.generated(config, name, content=text))
    return files
