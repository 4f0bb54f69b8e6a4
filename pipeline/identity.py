"""Who a row is about, as integers that mean the same in every block and on every worker."""

from __future__ import annotations

import hashlib

import numpy as np
import polars as pl
from numpy.typing import NDArray


def user_codes(users: pl.Series, digest_key: bytes | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Codes of users inside one block, and the table that turns a code into an identity.

    Parameters
    ----------
    users
        Int64 or String, no nulls; or Binary, the digests of `with_digests`.
    digest_key
        Key under which integer ids are replaced by digests too (deployment); None keeps integers as they are.

    Returns
    -------
    codes
        Shape (n_rows,).
    table
        Shape (n_users, 1) for plain integers or (n_users, 2) for 128-bit digests: rows equal exactly when users are
        (two of n text ids share a digest with probability below n²/2¹²⁹).

    Notes
    -----
    A hash per distinct user of the block, not per row.

    Examples
    --------
    >>> codes, table = user_codes(pl.Series(["b", "a", "b"]), None)
    >>> codes.tolist(), table.shape
    ([0, 1, 0], (2, 2))
    """
    if users.dtype in (pl.String, pl.Binary):
        run = users.rle_id()
        if len(users) and len(users) > 4 * (1 + int(run[-1])):
            # Files of one user each, or sorted by user: only the first row of each run is looked up.
            codes, table = user_codes(users.filter(run.diff().fill_null(1) != 0), digest_key)
            return codes[run.to_numpy()], table
        encoded = users.to_arrow().combine_chunks() if hasattr(users.to_arrow(), "combine_chunks") else users.to_arrow()
        dictionary = encoded.dictionary_encode()
        codes = dictionary.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        identities = dictionary.dictionary.to_pylist()
        if users.dtype == pl.Binary:
            return codes, np.frombuffer(b"".join(identities), "<i8").reshape(-1, 2)
        return codes, _digests([text.encode() for text in identities], digest_key)
    values = users.to_numpy()
    if digest_key is None:
        low, high = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        if high - low < 4 * len(values):
            return values - low, np.arange(low, high + 1, dtype=np.int64)[:, None]
        table, codes = np.unique(values, return_inverse=True)
        return codes.astype(np.int64), table.astype(np.int64)[:, None]
    table, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64), _digests(
        [int(value).to_bytes(8, "little", signed=True) for value in table], digest_key
    )


def with_digests(frame: pl.DataFrame, digest_key: bytes | None) -> pl.DataFrame:
    """Events with digests in place of their users, 16 bytes each: `user_codes` gives the same table as for the users.

    Parameters
    ----------
    frame
        With a column ``user``.
    digest_key
        None: users stay as they are. Digests stay as they are too.

    Examples
    --------
    >>> frame = pl.DataFrame({"user": ["ann", "bob", "ann"]})
    >>> hidden = with_digests(frame, b"key")["user"]
    >>> tables = [user_codes(users, b"key")[1] for users in (hidden, frame["user"])]
    >>> hidden.dtype, hidden.n_unique(), np.array_equal(*tables)
    (Binary, 2, True)
    """
    if digest_key is None or frame["user"].dtype == pl.Binary:
        return frame
    codes, table = user_codes(frame["user"], digest_key)
    whole = table.astype("<i8").tobytes()
    digests = pl.Series("user", [whole[i : i + 16] for i in range(0, len(whole), 16)], dtype=pl.Binary)
    return frame.with_columns(digests.gather(codes))


def _digests(identities: list[bytes], key: bytes | None) -> NDArray[np.int64]:
    digest = b"".join(hashlib.blake2b(i, digest_size=16, key=key or b"").digest() for i in identities)
    return np.frombuffer(digest, "<i8").reshape(-1, 2)
