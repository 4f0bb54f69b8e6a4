"""Account loop: steps one accountant through all releases in order, like the release loop for the mechanism."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.accountants.core.accountant import ACCOUNTANTS, Accountant, AccountingFacts, AccountRow, Rows
from penstock.mechanisms.core.plugin import PluginError, place_of
from penstock.mechanisms.core.state import State, decode_state, encode_state
from penstock.pipeline.counting.targets import PrivateFacts, empty_target_cells
from penstock.pipeline.releasing.release import Batch
from penstock.pipeline.windows.grid import WindowGrid

VERSION = 1
FORMAT = ("account_loop", VERSION)


class AccountLoop:
    """Loop that steps one accountant's shard through consecutive releases. Only the encoded state persists.

    ``facts`` hold what was prepared for the shard; ``targets`` are the numbers of the people whom it follows, if any.
    """

    def __init__(
        self, accountant: Accountant, facts: AccountingFacts, grid: WindowGrid, targets: slice | None = None
    ) -> None:
        self.accountant, self.grid, self.targets = accountant, grid, targets
        self.name = ACCOUNTANTS.name_of(type(accountant))
        self.model, self._state = accountant.start(facts)

    def start(self) -> bytes:
        """Return the state before the first release."""
        nothing = PrivateFacts(1, np.zeros((0, self.grid.n_cells), np.int64), empty_target_cells())
        return self._encode(self._state, 0, False, nothing)

    def is_early(self, data: bytes, batch: Batch) -> bool:
        """Return whether a batch arrived before its predecessor was accounted for."""
        flat = decode_state(data, *FORMAT)
        if self.targets is not None and batch.known is not None:
            return batch.known.first > _known_facts(flat).last + 1
        return bool(batch.releases) and batch.releases[0].window > int(flat["accounted"]) + 1

    def accounted(self, data: bytes) -> int:
        """Return the index of the last window that has been accounted for."""
        return int(decode_state(data, *FORMAT)["accounted"])

    def advance(self, data: bytes, batch: Batch) -> tuple[Rows, bytes]:
        """Account for the new releases in a batch and, at the end of the run, add the final metrics."""
        flat = decode_state(data, *FORMAT)
        accounted, finished = int(flat["accounted"]), bool(flat["finished"])
        accountant = self.accountant
        state = accountant_state(accountant, flat)
        rows: Rows = []
        known = _known_facts(flat)
        if self.targets is not None and batch.known is not None:
            known = known.joined(batch.known.after(known.last))
        if batch.releases:
            windows = self.grid.windows(batch.releases[0].window, batch.releases[-1].window)
            for release, window in zip(batch.releases, windows):
                if release.window > accounted:
                    private = {} if self.targets is None else known.of(release.window, self.targets)
                    made = accountant.charge(release, window, private, self.model, state)
                    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict)):
                        raise _contract_error(accountant, "charge", "must return a pair: rows, and the state as a dict")
                    rows += _checked_rows(accountant, "charge", made[0])
                    state = made[1]
                    accounted = release.window
        if not finished and (batch.stopped or accounted == self.grid.calendar.n_windows):
            rows += _checked_rows(accountant, "finish", accountant.finish(self.model, state))
            finished = True
        return rows, self._encode(state, accounted, finished, known.after(accounted))

    def summary(self, data: bytes) -> dict[str, Any]:
        """Summarise the accountant's current metrics as JSON values."""
        flat = decode_state(data, *FORMAT)
        accountant = self.accountant
        state = accountant_state(accountant, flat)
        figures: dict[str, Any] = writable(accountant.summary(self.model, state))
        return figures

    def _encode(self, state: State, accounted: int, finished: bool, known: PrivateFacts) -> bytes:
        encoded = encode_state(self.name, self.accountant.version, state)
        flat = {
            "accounted": np.asarray(accounted),
            "finished": np.asarray(finished),
            "first": np.asarray(known.first),
            "counts": known.counts,
            "sightings": known.target_cells,
        }
        return encode_state(*FORMAT, flat | {"state": np.frombuffer(encoded, np.uint8)})


def _checked_rows(accountant: Accountant, method: str, rows: Rows) -> Rows:
    """Return the rows. Raises `PluginError` if one is not an `AccountRow` or its value is NaN."""
    for row in rows:
        if not isinstance(row, AccountRow):
            raise _contract_error(accountant, method, f"must return rows of AccountRow, not {type(row).__name__}")
        if isinstance(row.value, float) and math.isnan(row.value):
            raise _contract_error(accountant, method, f"returns a row {row.name} whose value is no number (NaN)")
    return rows


def _contract_error(accountant: Accountant, method: str, text: str) -> PluginError:
    return PluginError(f"{place_of(type(accountant), (method,))}: {method} {text}")


def accountant_state(accountant: Accountant, flat: State) -> State:
    """Decode the accountant's state from its loop's state. Raise `StateVersionError` if the version differs."""
    name = ACCOUNTANTS.name_of(type(accountant))
    return decode_state(flat["state"].tobytes(), name, accountant.version)


def _known_facts(flat: State) -> PrivateFacts:
    """Return the operator-only data about windows that have not been released yet."""
    return PrivateFacts(int(flat["first"]), flat["counts"], flat["sightings"])


def writable(value: Any) -> Any:
    """Replace non-finite numbers with strings so that the value can be written as JSON.

    >>> writable({"loss": np.float64("inf"), "window": 3})
    {'loss': 'inf', 'window': 3}
    """
    if isinstance(value, dict):
        return {key: writable(entry) for key, entry in value.items()}
    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
