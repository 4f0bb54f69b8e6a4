"""One self-contained HTML file from the files of a run or of an experiment."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib import resources
from itertools import chain
from pathlib import Path
from string import Template
from typing import Any

from pipeline.output import files
from pipeline.reporting.experiment import choice_section, experiment_in, frontier, is_experiment
from pipeline.reporting.markup import Html, element, join
from pipeline.reporting.run_data import RunData
from pipeline.reporting.summary import as_html, figures_table, provenance, row_equation, verdict, warnings
from pipeline.reporting.traces import people_table

STYLES = ("page.css", "charts.css")
SCRIPTS = (
    "base.js",
    "data.js",
    "time.js",
    "paths.js",
    "chart.js",
    "toolbar.js",
    "map.js",
    "tables.js",
    "traces.js",
    "frontier.js",
    "main.js",
)


def write_report(folder: str | Path) -> Path:
    """Write ``report.html`` into the folder of a run or of an experiment.

    Parameters
    ----------
    folder
        What ``penstock run`` or ``penstock experiment`` wrote.

    Returns
    -------
    The page's path. Time and size grow with windows × cells, up to a million counts shown.

    Raises
    ------
    DataError
        If there is neither in the folder, or a file of it cannot be read.
    """
    folder = Path(folder)
    path = folder / "report.html"
    page = experiment_page(folder) if is_experiment(folder) else run_page(RunData.of(folder))
    with files.whole(path) as temporary:
        temporary.write_bytes(page)
    return path


def run_page(run: RunData, live: bool = False) -> bytes:
    """The page of a run; a live one asks the server it came from for newer versions of itself."""
    public = run.files.public
    with ThreadPoolExecutor(2) as pool:
        # First, so that counts are compressed while the rest of the page is made.
        data = run.as_json(pool) | {"live": live}
        content = [
            element(
                "header",
                element("p", f"penstock · {public['mode']}", class_="kicker"),
                element("h1", str(public["name"])),
                verdict(run),
            ),
            as_html(warnings(run)),
            element("section", id="explore", aria_label="Counts and costs over time"),
            _section("People", "people", people_table(run.files, run.accounts)),
            _section("Books", "books", figures_table(run)),
            _section("What became of every row", "rows", row_equation(run)),
            _section("Provenance", "provenance", provenance(run)),
        ]
        return assemble(str(public["name"]), join(*content), data)


def experiment_page(folder: Path) -> bytes:
    """The page of an experiment."""
    experiment = experiment_in(folder)
    name = str(experiment.manifest["name"])
    content = [
        element(
            "header", element("p", "penstock · experiment", class_="kicker"), element("h1", name), experiment.verdict()
        ),
        as_html(experiment.warnings()),
        _section("Choice", "choice", choice_section(experiment)),
        _section("Figures", "figures", experiment.figures()),
        _section("Expected and found", "expected", experiment.expected()),
        _section("Results", "results", experiment.results()),
        _section("Provenance", "provenance", experiment.provenance()),
    ]
    return assemble(name, join(*content), experiment.as_json() | {"frontier": frontier(experiment)})


def _section(title: str, name: str, content: Html | None) -> Html | None:
    return element("section", element("h2", title), content, id=name) if content else None


def assemble(title: str, content: Html, data: dict[str, Any]) -> bytes:
    """Template, styles, scripts, content and data in one text, in UTF-8.

    No text of a configuration or of a file can become markup or script: content is escaped where it is made, data is
    JSON without ``<``, and the content policy allows exactly the script and the style of this package.
    """
    style, script = _package_text(STYLES), _package_text(SCRIPTS)
    packed: list[bytes | Future[bytes]] = []
    # Nearly all of a page is packed arrays, which need no escape: they come in last, each where this stands for it.
    stand_in = secrets.token_hex()

    def set_aside(array: object) -> str:
        if not isinstance(array, bytes | Future):
            raise TypeError(f"{type(array).__name__} is neither JSON nor a packed array")
        packed.append(array)
        return stand_in

    # NaN is not JSON: figures that may be NaN are packed.
    encoded = json.dumps(data, default=set_aside, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    page = Template(_package_text(("page.html",))).substitute(
        title=element("title", f"{title} · penstock"),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        # The page asks for nothing, except a live one, which asks the server it came from.
        connect="'self'" if data.get("live") else "'none'",
        content=content,
        data=encoded,
    )
    first, *others = page.encode().split(stand_in.encode())
    arrays = (array.result() if isinstance(array, Future) else array for array in packed)
    return b"".join([first, *chain.from_iterable(zip(arrays, others, strict=True))])


@cache
def _package_text(names: tuple[str, ...]) -> str:
    folder = resources.files("pipeline.reporting") / "static"
    return "\n".join((folder / name).read_text(encoding="utf-8").strip() for name in names)


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")
