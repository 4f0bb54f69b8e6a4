"""A run's keys and the batching of its windows and users."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from penstock.mechanisms.core.noise import NoiseSource
from penstock.mechanisms.core.noise_keys import NoiseKey
from penstock.pipeline.counting.contributions import KeyLayout

#: Name of the stream of releases: the column ``stream``, and a word of every key of noise.
STREAM = "main"
#: Counts of this many cells travel as one matrix: small enough for any worker, large enough to amortise a call.
GROUP_CELLS = 1_000_000
#: Groups of windows in a finite run at least, so that some can be counted side by side.
GROUPS = 4
#: Windows of a group where rows come in the order of time: as few as memory wants, as many as a call is worth.
ORDERED_WINDOWS = 64


@dataclass(frozen=True)
class RunKeys:
    """A run's noise key and the keys derived from it.

    Those of a deployment travel with the fingerprints of the key and the nonce of the run only, without the secret or
    anything derived from it: every worker reads the key for itself
    (`penstock.pipeline.config.plan.Plan.with_noise_key`).
    """

    noise_key: NoiseKey
    configuration: bytes  # digest of the configuration, which noise, samples and charges are bound to

    def __getstate__(self) -> dict[str, Any]:
        if self.noise_key.simulation:
            return dict(self.__dict__)
        # What has been derived from the key stays behind as well.
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {"noise_key": (self.noise_key.fingerprints, self.noise_key.nonce)}

    def noise(self) -> NoiseSource:
        """Return the keyed noise source specified by the configuration."""
        return NoiseSource(self.noise_key, configuration=self.configuration, stream=STREAM)

    @cached_property
    def run_id(self) -> str:
        """The run's name in a shared ledger, which is empty for simulations because they may be repeated."""
        return self.noise_key.subkey("run").hex()[:16] if self.noise_key.nonce else ""

    @cached_property
    def users(self) -> bytes | None:
        """The key for hashing user ids at ingestion, or None in a simulation."""
        return None if self.noise_key.simulation else self.pseudonyms

    @cached_property
    def pseudonyms(self) -> bytes:
        """The key for user pseudonyms in traces, which simulations use as well."""
        return self.noise_key.subkey("pseudonym")

    @cached_property
    def bounding(self) -> bytes:
        """The key for the hashes used in bounding."""
        return self.noise_key.subkey("hash")

    @cached_property
    def ledger(self) -> bytes:
        """The key for input digests in the ledger."""
        return self.noise_key.subkey("ledger")


@dataclass(frozen=True)
class Batching:
    """Groups of windows that are counted together, and shards of users. Neither affects the results."""

    group: int  # windows whose counts travel together: whole blocks, and a single one on a stream
    n_windows: int | None  # of the run; None: endless
    n_cells: int
    n_shards: int = 1  # parts that users are split into while counting
    max_readers: int = 16  # that share a live source on an engine: each reads the files of all others

    @classmethod
    def of(
        cls, n_windows: int | None, n_cells: int, unit: int, streaming: bool, n_shards: int = 1, ordered: bool = False
    ) -> Batching:
        """Choose the batching for a mechanism on ``unit`` windows at once. ``ordered``: rows are sorted by time."""
        maximum = 1 if streaming or n_windows is None else min(GROUP_CELLS // n_cells, -(-n_windows // GROUPS))
        maximum = min(maximum, ORDERED_WINDOWS) if ordered else maximum
        return cls(max(1, maximum // unit) * unit, n_windows, n_cells, n_shards)

    def windows_of(self, group: int) -> int:
        """Return the number of windows in a group. The last group may be smaller than the others."""
        return self.group if self.n_windows is None else min(self.group, self.n_windows - group * self.group)

    @property
    def n_groups(self) -> int:
        """The number of window groups in a finite run."""
        if self.n_windows is None:
            raise ValueError("an endless run has no number of windows")
        return -(-self.n_windows // self.group)

    @cached_property
    def layout(self) -> KeyLayout:
        """The bit layout of keys for one group's memberships."""
        return KeyLayout(self.group, self.n_cells)
