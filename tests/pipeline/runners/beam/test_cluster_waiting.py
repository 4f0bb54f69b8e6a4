"""State of counts that wait for release: far groups are not rewritten with every release."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from penstock.pipeline.config.plan import ledger_path
from penstock.pipeline.counting.count import nothing
from penstock.pipeline.counting.spec import STREAM
from penstock.pipeline.output.files import parts_folder
from penstock.pipeline.runners.beam.coders import decode, encode_counts
from penstock.pipeline.runners.beam.graph import ReleaseWhenDue
from tests.tools.engine_state import Bag, Cell, Due
from tests.tools.ledgers import windows_in
from tests.tools.stream_graph import CONFIG, plan_in


def test_each_group_is_released_with_its_counts_however_far_ahead_they_came(tmp_path: Path) -> None:
    #: Groups whose state is read and written with every release, and all of them.
    near, n = 64, 192
    plan = plan_in(tmp_path, text=CONFIG.replace("until: 2024-01-01T12", "until: 2024-01-09T00"))
    step = ReleaseWhenDue(plan)
    step.setup()
    pending, further, loop, due = Bag(), Bag(), Cell(), Due()
    for group in np.random.default_rng(1).permutation(n).tolist():
        empty = nothing(group, plan.batching)
        counts = replace(empty, counts=empty.counts + group, bounded=empty.bounded + group)
        assert list(step.process((STREAM, encode_counts(counts, 1, plan)), pending, further, loop, due)) == []
    assert (len(pending), len(further)) == (near, n - near)
    for group in range(n):
        list(step.fire(str(group), pending, further, loop, due))
        actual = decode((parts_folder(plan, "counted") / f"{group:012d}").read_bytes())[0]
        assert np.all(actual.bounded == group)
    assert (len(pending), len(further)) == (0, 0)
    assert windows_in(ledger_path(plan)) == list(range(1, n + 1))
    assert pending.n_read == sum(range(near + 1)) + 2 * sum(range(near))
    assert further.n_read == 2 * near + 2 * near + near
