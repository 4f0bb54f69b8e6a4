"""SipHash-2-4 with Python integers, as its authors describe it."""

from __future__ import annotations

import struct

MASK = 2**64 - 1


def siphash(key: bytes, message: bytes, wide: bool = False) -> bytes:
    """Digest of 64 bits or, if ``wide``, of 128."""
    k0, k1 = struct.unpack("<2Q", key)
    v = [k0 ^ 0x736F6D6570736575, k1 ^ 0x646F72616E646F6D, k0 ^ 0x6C7967656E657261, k1 ^ 0x7465646279746573]

    def rotated(x: int, by: int) -> int:
        return (x << by | x >> (64 - by)) & MASK

    def rounds(n: int) -> None:
        for _ in range(n):
            v[0] = (v[0] + v[1]) & MASK
            v[1] = rotated(v[1], 13) ^ v[0]
            v[0] = rotated(v[0], 32)
            v[2] = (v[2] + v[3]) & MASK
            v[3] = rotated(v[3], 16) ^ v[2]
            v[0] = (v[0] + v[3]) & MASK
            v[3] = rotated(v[3], 21) ^ v[0]
            v[2] = (v[2] + v[1]) & MASK
            v[1] = rotated(v[1], 17) ^ v[2]
            v[2] = rotated(v[2], 32)

    def digest() -> bytes:
        rounds(4)
        return struct.pack("<Q", v[0] ^ v[1] ^ v[2] ^ v[3])

    v[1] ^= 0xEE if wide else 0
    padded = message + bytes(7 - len(message) % 8) + bytes([len(message) % 256])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 0xEE if wide else 0xFF
    low = digest()
    if not wide:
        return low
    v[1] ^= 0xDD
    return low + digest()
