"""Makes a PNG safe and unambiguous to open, without touching its pixels.

Real tools write text and colour-profile chunks that expand to many megabytes, and put orientation
after the pixels, where a reader sees it only once it has decoded everything.
Chunk layout: PNG (Third Edition), W3C, sections 5.3 and 11.3.
"""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sfumato_imaging.errors import CorruptImageError, NotAnImageError, TruncatedImageError
from sfumato_imaging.facts import ImageNote

MAX_METADATA_CHUNK_BYTES: Final = 1 << 20
"""Expanded size of one text, EXIF or ICC chunk; Pillow refuses larger compressed ones."""
MAX_METADATA_BYTES: Final = 16 << 20
"""Expanded size of all of them together."""
MAX_CHUNKS: Final = 200_000

_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_FRAME_BYTES: Final = 12
_TEXTS: Final = (b"tEXt", b"zTXt", b"iTXt")
_METADATA: Final = (*_TEXTS, b"eXIf", b"iCCP")


@dataclass(frozen=True, kw_only=True, slots=True)
class Chunk:
    """`start` and `end` frame the whole chunk, length field and checksum included."""

    kind: bytes
    start: int
    end: int


def chunks(data: bytes) -> Iterator[Chunk]:
    """The chunks up to and including IEND.

    Raises:
        TruncatedImageError: the data ends inside a chunk or before IEND.
        CorruptImageError: an unreasonable number of chunks.
    """
    start = len(_SIGNATURE)
    for _ in range(MAX_CHUNKS):
        end = start + _FRAME_BYTES + int.from_bytes(data[start : start + 4], "big")
        if start + _FRAME_BYTES > len(data) or end > len(data):
            raise TruncatedImageError("the PNG data ends before its IEND chunk")
        chunk = Chunk(kind=data[start + 4 : start + 8], start=start, end=end)
        yield chunk
        if chunk.kind == b"IEND":
            return
        start = end
    raise CorruptImageError(f"the PNG has more than {MAX_CHUNKS} chunks")


def tidy_png(data: bytes) -> tuple[bytes, tuple[ImageNote, ...]]:
    """Drop oversized and damaged metadata chunks and move the others in front of the pixels.

    Returns:
        The PNG bytes (the given ones where nothing had to change), and one note per kind of
        chunk that was dropped.
    """
    before: list[Chunk] = []
    moved: list[Chunk] = []
    after: list[Chunk] = []
    dropped: list[str] = []
    budget = MAX_METADATA_BYTES
    pixels_seen = False
    for chunk in chunks(data):
        pixels_seen = pixels_seen or chunk.kind == b"IDAT"
        if chunk.kind not in _METADATA:
            (after if pixels_seen else before).append(chunk)
            continue
        expanded = _expand(chunk.kind, _payload(data, chunk))
        if expanded is None or len(expanded) > min(MAX_METADATA_CHUNK_BYTES, budget):
            dropped.append(chunk.kind.decode("ascii"))
            continue
        budget -= len(expanded)
        (moved if pixels_seen else before).append(chunk)
    if not moved and not dropped:
        return data, ()
    kept = b"".join(data[chunk.start : chunk.end] for chunk in (*before, *moved, *after))
    notes = tuple(
        ImageNote(reason="METADATA_DROPPED", message=f"an oversized or damaged {kind} chunk")
        for kind in sorted(set(dropped))
    )
    return _SIGNATURE + kept, notes


def png_texts(data: bytes) -> dict[str, str]:
    """Keyword to text of every readable text chunk; of a repeated keyword the first.

    Raises:
        NotAnImageError: no PNG signature.
        TruncatedImageError, CorruptImageError: as `chunks`.
    """
    if not data.startswith(_SIGNATURE):
        raise NotAnImageError("the content is not a PNG")
    texts: dict[str, str] = {}
    for chunk in chunks(data):
        if chunk.kind not in _TEXTS:
            continue
        payload = _payload(data, chunk)
        text = _expand(chunk.kind, payload)
        if text is None or len(text) > MAX_METADATA_CHUNK_BYTES:
            continue
        encoding = "utf-8" if chunk.kind == b"iTXt" else "latin-1"
        keyword = payload.partition(b"\0")[0].decode("latin-1")
        texts.setdefault(keyword, text.decode(encoding, errors="replace"))
    return texts


def _payload(data: bytes, chunk: Chunk) -> bytes:
    return data[chunk.start + 8 : chunk.end - 4]


def _expand(kind: bytes, payload: bytes) -> bytes | None:
    """Content of a metadata chunk, or None where it does not decompress.

    Decompression goes only as far as it takes to see that the content is too large.
    """
    if kind == b"eXIf":
        return payload
    content = payload.partition(b"\0")[2]
    is_compressed = kind in (b"zTXt", b"iCCP")
    if is_compressed:
        content = content[1:]
    elif kind == b"iTXt":
        is_compressed = content[:1] == b"\x01"
        content = content[2:].partition(b"\0")[2].partition(b"\0")[2]
    if not is_compressed:
        return content
    try:
        return zlib.decompressobj().decompress(content, MAX_METADATA_CHUNK_BYTES + 1)
    except zlib.error:
        return None
