"""Noise keys: owner-only key files, key epochs and subkeys."""

from __future__ import annotations

import hashlib
import hmac
import json
import operator
import os
import secrets
import stat
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.mechanisms.core.plugin import ParameterError, PenstockError

SECRET_BYTES = 32
#: Random secrets have this many distinct bytes but once in 10⁴⁰ times; a placeholder has fewer.
MIN_DISTINCT = 6
#: Start of the first epoch of a key that has no earlier one.
BEGINNING = -(2**63)
FORMAT = "penstock noise key"
#: No key is longer; a device or a whole disk is not read to find out.
MAX_BYTES = 1 << 20


class NoiseKeyError(PenstockError):
    """Raised if a key is missing, malformed or readable by other users. The message never contains key material."""


@dataclass(frozen=True, eq=False, repr=False, slots=True)
class NoiseKey:
    """A secret, or one secret per epoch. Its string representation never reveals a secret.

    Made by `from_seed`, `from_file` or `from_environment`. Equality takes constant time; ``repr`` shows no secret.
    A pickle contains the secret, since workers need it: keep the runner's channels and staging area private.

    >>> key = NoiseKey.from_seed(7)
    >>> key
    NoiseKey(simulation=True, epochs=1)
    >>> key == NoiseKey.from_seed(7), key == NoiseKey.from_seed(8)
    (True, False)
    >>> key.subkey("noise", start_ms=0) == key.subkey("hash", start_ms=0)
    False
    """

    simulation: bool  # whether the secret comes from a seed; then knowing the seed suffices to remove the noise
    epochs: tuple[int, ...]  # when each epoch starts, in milliseconds since 1970 UTC, increasing
    _secrets: tuple[bytes, ...]
    nonce: bytes = b""  # random bytes of one run, which every subkey depends on (`for_run`); empty: none

    @classmethod
    def from_seed(cls, seed: int) -> NoiseKey:
        """Derive a simulation's key from its seed, which may be any integer."""
        if isinstance(seed, bool) or not hasattr(seed, "__index__"):
            raise ParameterError("seed", seed, "an integer")
        seed = operator.index(seed)
        return cls(True, (BEGINNING,), (hashlib.sha256(f"penstock simulation seed {seed}".encode()).digest(),))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> NoiseKey:
        """Read a deployment's key from an owner-only file written by `new_key_file`."""
        return cls._from_text(read_private(path), str(path))

    @classmethod
    def from_environment(cls, variable: str) -> NoiseKey:
        """Read a deployment's key from an environment variable: 64 hexadecimal digits or the contents of a key file."""
        text = os.environ.get(variable)
        if not text:
            raise NoiseKeyError(f"the environment variable {variable} holds no noise key")
        return cls._from_text(text, f"environment variable {variable}")

    def subkey(self, purpose: str, start_ms: int | None = None) -> bytes:
        """Derive an independent 32-byte key for one purpose, such as "noise", and for this run if a nonce is set.

        The window's start in milliseconds chooses the epoch (None: the first); `NoiseKeyError` before all of them.
        """
        if not purpose:
            raise ParameterError("purpose", purpose, "a name such as 'noise', 'hash' or 'pseudonym'")
        started = self.epochs if start_ms is None else [e for e in self.epochs if e <= start_ms]
        if not started:
            raise NoiseKeyError(
                f"the noise key begins at {self.epochs[0]} ms, after the window that starts at {start_ms}"
            )
        secret = self._secrets[0 if start_ms is None else len(started) - 1]
        subkey = hmac.digest(secret, b"penstock subkey " + purpose.encode(), "sha256")
        return hmac.digest(subkey, b"penstock run " + self.nonce, "sha256") if self.nonce else subkey

    def for_run(self, nonce: bytes) -> NoiseKey:
        """Derive one run's key from its nonce, which is random, drawn once and reused whenever the run resumes.

        They need not be secret, but must never serve two runs: equal noise on data that differ in one person shows
        where that person was. Subkeys under different nonces are independent.
        """
        return replace(self, nonce=nonce)

    @property
    def fingerprint(self) -> str:
        """A 16-digit hexadecimal fingerprint that identifies the key and its epochs without revealing them."""
        return hashlib.sha256("".join(self.fingerprints).encode()).hexdigest()[:16]

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """The fingerprints of all epochs, 16 hexadecimal digits each. A rotated key extends its predecessor's list."""
        derived = [hmac.digest(s, b"penstock fingerprint %d" % e, "sha256") for e, s in zip(self.epochs, self._secrets)]
        return tuple(digest.hex()[:16] for digest in derived)

    def continues(self, fingerprints: Sequence[str]) -> bool:
        """Return whether the key's fingerprints begin with the given list. Later epochs may follow it."""
        return list(self.fingerprints[: len(fingerprints)]) == list(fingerprints)

    def limited_to(self, fingerprints: Sequence[str]) -> NoiseKey:
        """Return the key restricted to its first epochs, by fingerprint. Raise `NoiseKeyError` if they do not match."""
        if not fingerprints or not self.continues(fingerprints):
            raise NoiseKeyError("this is not the noise key that the run began with; every worker needs the same one")
        n_epochs = len(fingerprints)
        return NoiseKey(self.simulation, self.epochs[:n_epochs], self._secrets[:n_epochs], self.nonce)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NoiseKey):
            return NotImplemented
        same = hmac.compare_digest(b"".join(self._secrets), b"".join(other._secrets))
        return same and (self.simulation, self.epochs, self.nonce) == (other.simulation, other.epochs, other.nonce)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"NoiseKey(simulation={self.simulation}, epochs={len(self.epochs)})"

    @classmethod
    def _from_text(cls, text: str, place: str) -> NoiseKey:
        try:
            epochs = _parse(text)
        except (ValueError, KeyError, TypeError, RecursionError):
            # The cause is dropped on purpose: it would quote the text.
            raise NoiseKeyError(
                f"{place}: not a noise key; it must be 64 hexadecimal digits or a file of `penstock key new`"
            ) from None
        return cls(False, tuple(start for start, _ in epochs), tuple(secret for _, secret in epochs))


def new_key_file(path: str | os.PathLike[str]) -> NoiseKey:
    """Generate a secret with the operating system's random generator and write it to a new file with mode 0600."""
    write_private(path, _render([(BEGINNING, secrets.token_bytes(SECRET_BYTES))]))
    return NoiseKey.from_file(path)


def add_key_epoch(path: str | os.PathLike[str], start_ms: int) -> NoiseKey:
    """Add a secret to a key file for windows from ``start_ms`` onwards. This must be after the last epoch's start."""
    key = NoiseKey.from_file(path)
    if start_ms <= key.epochs[-1]:
        raise ParameterError("start_ms", start_ms, f"after the last epoch's start, {key.epochs[-1]}")
    epochs = [*zip(key.epochs, key._secrets), (start_ms, secrets.token_bytes(SECRET_BYTES))]
    write_private(path, _render(epochs), replace=True)
    return NoiseKey.from_file(path)


def _render(epochs: list[tuple[int, bytes]]) -> str:
    rows = [{"start_ms": None if start == BEGINNING else start, "secret": secret.hex()} for start, secret in epochs]
    return json.dumps({"format": FORMAT, "version": 1, "epochs": rows}, indent=1) + "\n"


def _parse(text: str) -> list[tuple[int, bytes]]:
    """Parse the epochs of a key file. Raise ValueError, KeyError or TypeError if the contents are malformed."""
    if not text.lstrip().startswith("{"):
        return [(BEGINNING, _secret(text.strip()))]
    content: dict[str, Any] = json.loads(text)
    if (content["format"], content["version"]) != (FORMAT, 1):
        raise ValueError("another format")
    epochs = [
        (BEGINNING if row["start_ms"] is None else int(row["start_ms"]), _secret(row["secret"]))
        for row in content["epochs"]
    ]
    starts = [start for start, _ in epochs]
    if not starts or starts != sorted(set(starts)):
        raise ValueError("epochs out of order")
    return epochs


def _secret(digits: str) -> bytes:
    secret = bytes.fromhex(digits)
    if len(secret) != SECRET_BYTES:
        raise ValueError("wrong length")
    if len(set(secret)) < MIN_DISTINCT:
        raise ValueError("a placeholder")
    return secret


def read_private(path: str | os.PathLike[str]) -> str:
    """Read a text file that only its owner can read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:
            _refuse_shared(path, os.fstat(descriptor))
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise NoiseKeyError(f"{path}: cannot be read as a key: is longer than any")
        return data.decode("utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not text"
        raise NoiseKeyError(f"{path}: cannot be read as a key: {reason}") from None


def _refuse_shared(path: str | os.PathLike[str], status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise NoiseKeyError(f"{path}: cannot be read as a key: is no regular file")
    if os.name != "posix":
        return
    mode = stat.S_IMODE(status.st_mode)
    if mode & 0o077:
        raise NoiseKeyError(f"{path}: others may read this key (mode {mode:04o}); do chmod 600 and replace it")
    if status.st_uid not in (os.geteuid(), 0):
        raise NoiseKeyError(f"{path}: another user owns this key; copy it to a file of your own and replace it")
    folder = os.stat(Path(path).resolve().parent)
    if folder.st_mode & stat.S_IWOTH and not folder.st_mode & stat.S_ISVTX:
        raise NoiseKeyError(f"{path}: everybody may replace this key; do chmod o-w on its folder")


def write_private(path: str | os.PathLike[str], text: str, replace: bool = False) -> None:
    """Write and fsync a file with mode 0600. Fail if the file already exists, unless ``replace`` is set."""
    # mkstemp makes files of mode 0600, and linking fails where there is one.
    temporary = None
    try:
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=Path(path).parent, prefix=".key-")
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
    except OSError as error:
        raise NoiseKeyError(f"{path}: cannot make a new key: {error.strerror}") from None
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
