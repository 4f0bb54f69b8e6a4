"""Seeded mutation of bytes: the same generator always gives the same input, so that a crash is found again."""

from __future__ import annotations

import random

WORDS = (
    b"",
    b"\0",
    b"\n",
    b"\r\n",
    b'"',
    b"'",
    b",",
    b"\t",
    b"{",
    b"[",
    b"]",
    b"&a",
    b"*a",
    b"!!",
    b"<",
    b"]]>",
    b"%",
    b"-",
)
WORDS += (
    b"\xff",
    b"\xc3\x28",
    "\u202e".encode(),
    b"nan",
    b"inf",
    b"-1",
    b"1e999",
    b"99999999999999999999",
    b"0x",
    b"~",
)
WORDS += (b"2024-13-45", b"../" * 3, b"</script>", b"true", b"null", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80")


def mutated(data: bytes, random_: random.Random, n_edits: int = 8, longest: int = 1 << 16) -> bytes:
    """A few random edits: bits, words, repetitions, cuts and swaps."""
    out = bytearray(data)
    for _ in range(random_.randint(1, n_edits)):
        at = random_.randrange(len(out) + 1)
        size = min(len(out) - at, 1 << random_.randrange(8))
        edit = random_.randrange(6)
        if edit == 0 and at < len(out):
            out[at] ^= 1 << random_.randrange(8)
        elif edit == 1:
            out[at:at] = random_.choice(WORDS)
        elif edit == 2:
            del out[at : at + size]
        elif edit == 3:
            out[at : at + size] = out[at : at + size] * random_.randint(2, 5)
        elif edit == 4:
            out[at : at + size] = random_.randbytes(size)
        else:
            other = random_.randrange(len(out) + 1)
            out[at:at] = out[other : other + size]
        del out[longest:]
    return bytes(out)
