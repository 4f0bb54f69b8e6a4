"""From blocks of events to the traces of a shard of users, without Beam: what the reading stages of the graph call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mechanisms.core.sphere import Points
from mechanisms.core.state import decode_state, encode_state
from mechanisms.core.traces import Traces
from pipeline.block import EventBlock
from pipeline.fate import Fate
from pipeline.identity import user_codes
from pipeline.packing import starts_of
from pipeline.plan import Plan
from pipeline.trace_landmarks import budget_periods, landmark_mask

Integers = NDArray[np.int64]


def read_block(block: EventBlock, plan: Plan) -> tuple[Fate, Iterator[tuple[int, bytes]]]:
    """Points of one block by user shard.

    Returns
    -------
    The fate of the block's rows, and (shard, encoded points) pairs. Users are pseudonyms from here on.
    """
    times = block.frame["time"].to_numpy()
    timely = plan.calendar.index(times) > 0
    inside = np.asarray(plan.space.place(block.frame)) >= 0
    used = timely & inside
    fate = Fate(
        rows=block.n_rows,
        used=int(used.sum()),
        out_of_time=int((~timely).sum()),
        out_of_area=int((timely & ~inside).sum()),
    )
    for reject in block.rejects:
        fate.rejected[reject.reason] = fate.rejected.get(reject.reason, 0) + 1
    return fate, _split(block.frame.filter(used), plan)


def _split(frame: Any, plan: Plan) -> Iterator[tuple[int, bytes]]:
    if frame.is_empty():
        return
    codes, table = user_codes(frame["user"], plan.pseudonym_key)
    users = table.astype("<i8").view(">u8").astype(np.uint64)[codes]
    # The pseudonym's leading bits choose the shard, so that shards in order hold pseudonyms in order.
    shard = ((users[:, 0] >> np.uint64(32)) * np.uint64(plan.n_shards)) >> np.uint64(32)
    columns = {name: frame[name].to_numpy() for name in ("time", "latitude", "longitude")}
    for number in np.unique(shard).tolist():
        own = shard == number
        piece = {"user": users[own], **{name: values[own] for name, values in columns.items()}}
        yield int(number), encode_state("points", 1, piece)


def gather(parts: Iterable[bytes], plan: Plan) -> Traces:
    """The traces of one shard.

    Parameters
    ----------
    parts
        Encoded points of the shard, in any order.
    plan
        The run.

    Returns
    -------
    The traces, users in order of their pseudonyms. Of several points of a user at the same millisecond the southernmost
    remains, of those the westernmost; the others are duplicates.
    """
    pieces = [decode_state(part, "points", 1) for part in parts]
    users, times, latitudes, longitudes = (
        np.concatenate([piece[name] for piece in pieces]) for name in ("user", "time", "latitude", "longitude")
    )
    order = np.lexsort((longitudes, latitudes, times, users[:, 1], users[:, 0]))
    users, times = users[order], times[order]
    kept = starts_of([users[:, 0], users[:, 1], times])
    users, times, rows = users[kept], times[kept], order[kept]
    points: Points = np.column_stack([latitudes[rows], longitudes[rows]])
    starts = np.flatnonzero(starts_of([users[:, 0], users[:, 1]]))
    return Traces(
        users=users[starts].view(np.int64),
        starts=starts,
        times=times,
        points=points,
        landmarks=landmark_mask(plan.config.landmarks, plan.config.windows.time_zone, times, points, starts),
        periods=budget_periods(plan, times),
    )


def pseudonyms(users: Integers) -> list[str]:
    """Pseudonyms as text: 32 hexadecimal digits for each row of ``users``.

    >>> pseudonyms(np.array([[1, 255]]))
    ['000000000000000100000000000000ff']
    """
    digits = np.ascontiguousarray(users).astype(">i8").tobytes().hex()
    return [digits[i : i + 32] for i in range(0, len(digits), 32)]
