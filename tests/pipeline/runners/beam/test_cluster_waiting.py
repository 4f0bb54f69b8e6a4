"""State of counts that wait for release: far groups are not rewritten with every release."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from penstock.pipeline.config.plan import ledger_path
from penstock.pipeline.counting.count import nothing
from penstock.pipeline.counting.spec import STREAM
from penstock.pipeline.output.files import parts_folder
from penstock.pipeline.runners.beam.coders import decode, encode_counts
from penstock.pipeline.runners.beam.graph import ReleaseWhenDue
from tests.tools.engine_state import Bag, Cell, Due
from tests.tools.ledgers import windows_in
from tests.tools.stream_graph import plan_in


def test_each_group_is_released_with_its_counts_however_far_ahead_they_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.pipeline.runners.beam.graph._TIMERS_AHEAD", 4)
    plan = plan_in(tmp_path)
    step = ReleaseWhenDue(plan)
    step.setup()
    pending, further, loop, due = Bag(), Bag(), Cell(), Due()
    for group in np.random.default_rng(1).permutation(12).tolist():
        empty = nothing(group, plan.batching)
        counts = replace(empty, counts=empty.counts + group, bounded=empty.bounded + group)
        assert list(step.process((STREAM, encode_counts(counts, 1, plan)), pending, further, loop, due)) == []
    assert (len(pending), len(further)) == (4, 8)
    for group in range(12):
        list(step.fire(str(group), pending, further, loop, due))
        actual = decode((parts_folder(plan, "counted") / f"{group:012d}").read_bytes())[0]
        assert np.all(actual.bounded == group)
    assert (len(pending), len(further)) == (0, 0)
    assert windows_in(ledger_path(plan)) == list(range(1, 13))
    assert pending.n_read == (4 + 3 + 2 + 1) + 2 * (3 + 2 + 1)
    assert further.n_read == 8 + 8 + 4
