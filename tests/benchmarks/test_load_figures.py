"""Figures that the load benchmark computes from its looks at a run."""

from typing import Any

import numpy as np

from benchmarks import load


def glance(at: float, rows: int, released: int, **memory: float) -> Any:
    processor = {("worker", 1 + (at > 2)): 10.0 + at}
    return load.Glance(at, {"worker": at, **memory}, processor, rows, released, (1000 * released, 5), 1.0)


def test_throughput_leaves_out_the_start_and_what_is_gone_at_the_end() -> None:
    rows = [0, 0, 100, 300, 500, 700, 900, 1000, 1000, 0]
    glances = [glance(at, n, 5 * (at > 7)) for at, n in enumerate(rows)]
    # 800 were counted from the third look to the seventh, 900 after the third one and released within six seconds.
    assert load.events_per_second(glances) == {"events per second, counted": 200, "and released": 150}


def test_delays_before_the_pause_and_after_it() -> None:
    assert load.steady(np.array([1.0, 1.0, 2.0, 2.0, 3.0, 3.0])) == {
        "windows": 6,
        "p50 (ms)": 2000,
        "p99 (ms)": 3000,
        "p50 by thirds (s)": [1.0, 2.0, 3.0],
    }
    after, delays = np.array([-1.0, 20.0, 21.0, 22.0, 23.0]), np.array([1.0, 40.0, 30.0, 4.0, 2.0])
    assert load.recovery(after, delays) == {
        "released again after (s)": 20.0,
        "caught up after (s)": 22.0,
        "p50 after that (s)": 3.0,
    }
