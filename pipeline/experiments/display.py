"""What a person sees of an experiment: one line while it goes on, a summary at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.experiments.cell_runs import Listener
from pipeline.experiments.runner import Outcome


@contextmanager
def show_cells(n_cells: int, enabled: bool) -> Iterator[Listener]:
    """A progress bar over all cells on standard error, and the listener that moves it."""
    if not enabled:
        yield lambda done, failed, counts: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("cells · {task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("begun", total=n_cells)

        def listener(done: int, failed: int, counts: int) -> None:
            """Move the bar."""
            words = [f"{number} {what}" for number, what in ((counts, "counted"), (failed, "failed")) if number]
            bar.update(task, completed=done + failed, description=" · ".join(words))

        yield listener


def summary(outcome: Outcome) -> str:
    """The end of an experiment in a few lines: cells, claims, choice, files."""
    manifest = outcome.manifest
    n_failed = len(manifest["failed"])
    lines = [
        f"cells     {manifest['cells']:,}: {manifest['cells'] - n_failed:,} done ({manifest['resumed']:,} of them "
        f"before), {n_failed:,} failed" + (f"; {manifest['counted']:,} counts made" if "counted" in manifest else ""),
    ]
    for failure in manifest["failed"]:
        values = ", ".join(f"{name}={value}" for name, value in failure["values"].items())
        lines.append(f"FAILED    {values} seed={failure['seed']}: {failure['problem']}")
    for claim in manifest.get("expected", ()):
        value = "" if claim["value"] is None else f" ({claim['value']:.4g})"
        lines.append(f"{claim['verdict']:17} {claim['says']}{value}")
    if choice := manifest.get("choice"):
        lines.append(_choice(choice))
    lines.append("open")
    for pattern in (
        "report.html",
        "results.parquet",
        "summary.csv",
        "expected.csv",
        "frontier.csv",
        "best.yaml",
        *manifest.get("tables", ()),
        "figures/*",
    ):
        lines += [f"  {path}" for path in sorted(outcome.folder.glob(pattern))]
    return "\n".join(lines)


def _choice(choice: dict) -> str:  # type: ignore[type-arg]
    if choice["best"] is None:
        return f"chosen    nothing: none of {choice['settings']:,} settings keeps all limits"
    values = ", ".join(f"{name}={value}" for name, value in choice["best"]["values"].items())
    means = ", ".join(f"{name} {value:.4g}" for name, value in choice["best"]["means"].items())
    return f"chosen    {values}: {means} ({choice['allowed']:,} of {choice['settings']:,} settings keep all limits)"
