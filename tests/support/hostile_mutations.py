"""Damages good files, always in the same ways for one seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from hostile_archives import compressed, tar_of, zip_of
from hostile_images import FORMATS, encoded, noise
from pictures import picture

_NUMBERS = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def _flip(data: bytearray, source: random.Random) -> None:
    for _ in range(source.randint(1, 8)):
        data[source.randrange(len(data))] ^= source.randint(1, 255)


def _cut(data: bytearray, source: random.Random) -> None:
    del data[source.randrange(1, len(data)) :]


def _chunk(data: bytearray, source: random.Random) -> bytes:
    start = source.randrange(len(data))
    return bytes(data[start : start + source.randint(1, 64)])


def _splice(data: bytearray, source: random.Random) -> None:
    chunk, at = _chunk(data, source), source.randrange(len(data))
    data[at : at + len(chunk)] = chunk


def _repeat(data: bytearray, source: random.Random) -> None:
    at = source.randrange(len(data))
    data[at:at] = _chunk(data, source) * source.randint(1, 20)


def _remove(data: bytearray, source: random.Random) -> None:
    at = source.randrange(len(data) - 1)
    del data[at : at + source.randint(1, 16)]


def _lie_about_length(data: bytearray, source: random.Random) -> None:
    width = source.choice((2, 4, 8))
    at = source.randrange(max(1, min(len(data), 512) - width))
    if source.random() < 0.5:  # lists and ends of archives are behind
        at = max(0, len(data) - width - at)
    number = source.choice(_NUMBERS) & ((1 << 8 * width) - 1)
    data[at : at + width] = number.to_bytes(width, source.choice(("little", "big")))


_WAYS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip,
    _cut,
    _splice,
    _repeat,
    _remove,
    _lie_about_length,
)


def mutated(data: bytes, seed: str) -> bytes:
    """The file, damaged in one or two ways."""
    source = random.Random(seed)
    changed = bytearray(data)
    for _ in range(source.randint(1, 2)):
        if len(changed) > 1:
            source.choice(_WAYS)(changed, source)
    return bytes(changed)


def good_images() -> Mapping[str, bytes]:
    """Suffix to a small picture of each format."""
    return {suffix: encoded(noise(24), format) for format, suffix in FORMATS.items()}


PICTURES = [(b"set/picture_%d.png" % index, picture(index)) for index in range(4)]
_LINES = b"".join(
    b'{"file_name": "picture_%d.png", "text": "number %d", "tags": ["a", "b"]}\n' % (index, index)
    for index in range(4)
)
_TABLE = b'file_name,text\npicture_0.png,"a, b"\npicture_1.png,"say ""c"""\npicture_2.png,d\n'


def good_archives() -> Mapping[str, bytes]:
    """Kind to an archive of four pictures, captions among them."""
    files = [*PICTURES, (b"set/picture_0.txt", b"caption"), (b"set/metadata.jsonl", _LINES)]
    tar = tar_of(files)
    kinds = {kind: compressed(kind, tar) for kind in ("gz", "bz2", "xz")}
    return {"zip": zip_of(files), "tar": tar, **kinds}


def good_metadata() -> Mapping[str, bytes]:
    """File name to its content, which captions PICTURES."""
    return {"metadata.jsonl": _LINES, "metadata.csv": _TABLE}
