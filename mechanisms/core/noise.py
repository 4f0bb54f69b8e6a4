"""Keyed, retry-safe noise: the same step on the same input draws the same noise, any other step independent noise.

Drawing afresh on a retry lets retries be averaged until the noise is gone; drawing by name only reuses noise for
different data, whose difference is then exact. So every draw is a function of a secret key *and* of all that may
influence the release: configuration, stream, window, step, input and state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from numpy.typing import NDArray

from mechanisms.core.errors import ParameterError
from mechanisms.core.noise_digest import check_inputs, draw_seeds
from mechanisms.core.noise_draws import Noise
from mechanisms.core.noise_keys import NoiseKey, add_key_epoch, new_key_file
from mechanisms.core.sampling.siphash import keyed_hash
from mechanisms.core.sampling.unkeyed import UnkeyedNoise
from mechanisms.core.secret_files import NoiseKeyError

__all__ = ["Noise", "NoiseKey", "NoiseKeyError", "NoiseSource", "add_key_epoch", "keyed_hash", "new_key_file"]

SOURCES = ("keyed", "opendp")


@dataclass(frozen=True)
class NoiseSource:
    """Where all noise of one configuration and stream comes from.

    Parameters
    ----------
    key
        The secret; its epoch is chosen by each window's start.
    configuration
        Digest of everything in the resolved configuration that affects values.
    stream
        Name of the stream.
    exact
        Integer arithmetic only, and no real-valued noise. None: in deployment yes, in simulation no. False with a
        deployment key allows real-valued noise, which is open to floating-point attacks (Mironov, CCS 2012).
    source
        ``"keyed"``, or ``"opendp"`` for that library's exact samplers. These cannot be keyed, so they are **not**
        retry-safe and no run can be repeated: each retry of a step is a further release of the same data.

    Examples
    --------
    >>> import numpy as np
    >>> source = NoiseSource(NoiseKey.from_seed(7), configuration=b"")
    >>> counts = np.array([3, 0, 5])
    >>> first = source.at(0, 3_600_000, "step", counts, {}).discrete_laplace(2.0, 3)
    >>> again = source.at(0, 3_600_000, "step", counts, {}).discrete_laplace(2.0, 3)
    >>> bool((first == again).all())
    True
    """

    key: NoiseKey
    configuration: bytes = field(kw_only=True)
    stream: str = field(default="", kw_only=True)
    exact: bool | None = field(default=None, kw_only=True)
    source: str = field(default="keyed", kw_only=True)

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ParameterError("source", self.source, "one of " + ", ".join(SOURCES))

    def at(
        self,
        window_start: int,
        window_end: int,
        step: str,
        counts: NDArray[Any],
        state: Mapping[str, NDArray[Any]],
        n_replicas: int | None = None,
    ) -> Noise:
        """Noise of one step.

        Parameters
        ----------
        window_start, window_end
            Milliseconds since 1970 UTC.
        step
            What is drawn for, for instance ``"step"`` or ``"finish"``.
        counts, state
            The input of the step and the state before it, which includes everything else the release depends on.
        n_replicas
            None, or the length of the leading axis of `counts` and of every state array. Replica r's noise depends on
            r, ``counts[r]`` and the states' entries r only; replica 0 draws what a run without replicas does.

        Notes
        -----
        Costs about 10 µs, and when something is drawn 1 µs per kilobyte of input and state and 2 µs per replica;
        neither may be changed before that.
        """
        span = b"".join(int(time).to_bytes(8, "little", signed=True) for time in (window_start, window_end))
        context = (b"penstock noise 1", self.configuration, self.stream.encode(), span, step.encode())
        secret = self.key.subkey("noise", int(window_start))
        check_inputs(counts, state, n_replicas)
        seeds = partial(draw_seeds, secret, context, counts, dict(state), n_replicas)
        is_exact = (not self.key.simulation) if self.exact is None else self.exact
        if self.source == "opendp":
            return UnkeyedNoise(seeds(), n_replicas, is_exact)
        return Noise(seeds, n_replicas, is_exact)
