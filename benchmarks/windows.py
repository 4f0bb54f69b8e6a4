"""Many windows with few events: what schedules, books and files cost when counting costs nothing."""

from __future__ import annotations

from benchmarks.counting import CONFIGURATION
from benchmarks.measure import Row, Settings, net_of_start


def rows(settings: Settings) -> list[Row]:
    """Windows of a minute over a week, 1,000 cells."""
    days = 1 if settings.quick else 7
    n_windows = days * 1440
    source = f"{{type: synthetic, n_users: 100, rows: 25, columns: 40, days: {days}}}"
    config = settings.folder / "windows.yaml"
    output = f"{settings.folder / 'windows'}, report: false"
    config.write_text(CONFIGURATION.format(source=source, rows=25, columns=40, size="1m", output=output, without=""))
    net, whole = net_of_start(config, {}, settings.repeats)["penstock"]
    each = 1000 * net.wall / n_windows
    row = Row(
        area="windows",
        what=f"{n_windows:,} windows, 1,000 cells: landmark_uniform, landmark_budget, all files but the report",
        ours=each,
        unit="ms a window",
        whole=whole.wall,
        cpu=net.cpu,
        memory=whole.memory,
        target="at most 1 ms a window",
        met=each <= 1,
    )
    return [row]
