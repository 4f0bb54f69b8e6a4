"""A configuration together with its noise key: everything secret that a run derives, and how little of it travels."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from mechanisms.core.noise import NoiseKey, NoiseSource
from pipeline.configuration.run import RunConfig, digest
from pipeline.sealing import public_key

STREAM = "main"


@dataclass(frozen=True)
class KeyedRun:
    """A configuration and its noise key; immutable and picklable.

    Parameters
    ----------
    config
        The configuration as loaded.
    key
        Noise key of the run.

    Notes
    -----
    A deployment's travels without its secret, nor anything derived from it: every worker reads the noise key for
    itself.
    """

    config: RunConfig
    key: NoiseKey

    def __getstate__(self) -> dict[str, Any]:
        if self.key.simulation:
            return dict(self.__dict__)
        # What has been derived from the key stays behind as well.
        own = {field.name: getattr(self, field.name) for field in fields(self)}
        return own | {"key": self.key.fingerprints}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(state["key"], tuple):
            # Another key, or an epoch that the run did not begin with, would be a second release of the same windows.
            self.__dict__["key"] = noise_key(self.config).limited_to(state["key"])

    def noise(self) -> NoiseSource:
        """The keyed noise of this configuration."""
        return NoiseSource(self.key, configuration=digest(self.config), stream=STREAM)

    @cached_property
    def digest_key(self) -> bytes | None:
        """Key under which user ids are replaced at ingestion; None in a simulation."""
        return None if self.key.simulation else self.key.subkey("pseudonym")

    @cached_property
    def pseudonym_key(self) -> bytes:
        """Key under which users of traces become pseudonyms, in a simulation too."""
        return self.key.subkey("pseudonym")

    @cached_property
    def hash_key(self) -> bytes:
        """Key of the hashes that bounding decides by."""
        return self.key.subkey("hash")

    @property
    def reject_rule(self) -> str:
        """What is kept of rejected rows: ``raw``, ``places`` or ``sealed``."""
        return self.config.output.rejects or ("raw" if self.config.mode == "simulation" else "places")

    @cached_property
    def reject_key(self) -> bytes:
        """Public key that rejected rows are sealed for."""
        return public_key(self.config.output.rejects_key or "")


def noise_key(config: RunConfig) -> NoiseKey:
    """Noise key of a configuration: of its seed, or in a deployment the secret in ``env:NAME`` or a file."""
    if config.mode == "simulation":
        return NoiseKey.from_seed(config.seed or 0)
    named = config.noise_key or ""
    if named.startswith("env:"):
        return NoiseKey.from_environment(named.removeprefix("env:"))
    return NoiseKey.from_file(named)
