"""Seal texts for a reader elsewhere: with the public key anyone can, and only the private key opens them again.

Hybrid public key encryption (RFC 9180) of the cryptography library, with X25519, HKDF-SHA256 and ChaCha20-Poly1305.
The library is an extra, and is imported only here.
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import os
from pathlib import Path
from typing import Any

from penstock.mechanisms.core.noise_keys import read_private
from penstock.mechanisms.core.plugin import DataError

#: Says what a sealed text is, so that one of another kind is never taken for it.
INFO = b"penstock rejects 1"
INSTALL = "needs a recent cryptography library; run: pip install 'penstock[crypto]'"


def is_installed() -> bool:
    """Whether the library is there, and recent enough."""
    try:
        return importlib.util.find_spec("cryptography.hazmat.primitives.hpke") is not None
    except ModuleNotFoundError:
        return False


def new_pair(path: str | os.PathLike[str]) -> Path:
    """Write a new private key, readable by its owner only, and beside it the public key (``.pub``); gives the latter.

    Raises `DataError` if one of the files exists, or the library is missing.
    """
    if not is_installed():
        raise DataError(f"a pair of keys {INSTALL}")
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    private, public = X25519PrivateKey.generate(), Path(f"{os.fspath(path)}.pub")
    for file, content, mode in (
        (Path(path), private.private_bytes_raw(), 0o600),
        (public, private.public_key().public_bytes_raw(), 0o644),
    ):
        try:
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        except OSError as error:
            raise DataError(f"{file}: cannot make a new key: {error.strerror}") from None
        with open(descriptor, "w", encoding="ascii") as stream:
            stream.write(content.hex() + "\n")
    return public


def public_key(path: str | os.PathLike[str]) -> bytes:
    """The 32 bytes of a public key file of `new_pair`; raises `DataError` where it is none."""
    try:
        return _key(Path(path).read_text(encoding="ascii"))
    except (OSError, ValueError):
        raise DataError(f"{path}: not a public key; it must be the .pub file of `penstock key pair`") from None


def seal(text: str, public: bytes) -> str:
    """A text as only the owner of the private key can read it, in base64; O(1) about 0.2 ms."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    data: bytes = _suite().encrypt(text.encode(), X25519PublicKey.from_public_bytes(public), INFO)
    return base64.b64encode(data).decode("ascii")


def unseal(sealed: str, path: str | os.PathLike[str]) -> str:
    """Inverse of `seal` with the private key in a file; raises `DataError` for another key or a damaged text."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    try:
        private = X25519PrivateKey.from_private_bytes(_key(read_private(path)))
    except ValueError:
        raise DataError(f"{path}: not a private key; it must be a file of `penstock key pair`") from None
    try:
        data: bytes = _suite().decrypt(base64.b64decode(sealed, validate=True), private, INFO)
    except (InvalidTag, ValueError, binascii.Error):
        raise DataError(f"{path}: does not open this: it was sealed for another key, or is damaged") from None
    return data.decode()


def _suite() -> Any:
    from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

    return Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


def _key(text: str) -> bytes:
    key = bytes.fromhex(text.strip())
    if len(key) != 32:
        raise ValueError("wrong length")
    return key
