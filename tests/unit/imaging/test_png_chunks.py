import io
import struct
import zlib

import pytest
from PIL import Image

from sfumato_imaging.errors import CorruptImageError, NotAnImageError
from sfumato_imaging.png_chunks import MAX_CHUNKS, chunks, png_texts, tidy_png


def chunk(kind: bytes, payload: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(kind + payload))
    return struct.pack(">I", len(payload)) + kind + payload + checksum


def png(before: bytes = b"", after: bytes = b"") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (2, 2)).save(buffer, format="PNG")
    data = buffer.getvalue()
    pixels = data.index(b"IDAT") - 4
    return data[:pixels] + before + data[pixels:-12] + after + data[-12:]


def kinds(data: bytes) -> list[bytes]:
    return [found.kind for found in chunks(data)]


def test_a_tidy_png_is_returned_as_it_is() -> None:
    data = png(chunk(b"tEXt", b"a\0b"))
    assert tidy_png(data)[0] is data


def test_metadata_behind_the_pixels_moves_in_front() -> None:
    data, notes = tidy_png(png(after=chunk(b"eXIf", b"MM") + chunk(b"tEXt", b"a\0b")))
    assert kinds(data) == [b"IHDR", b"eXIf", b"tEXt", b"IDAT", b"IEND"]
    assert notes == ()


@pytest.mark.parametrize(
    "bad",
    [
        chunk(b"tEXt", b"a\0" + b"x" * (2 << 20)),
        chunk(b"zTXt", b"a\0\0" + zlib.compress(b"x" * (64 << 20))),
        chunk(b"iTXt", b"a\0\x01\0\0\0" + zlib.compress(b"x" * (2 << 20))),
        chunk(b"iCCP", b"a\0\0" + zlib.compress(b"x" * (2 << 20))),
        chunk(b"zTXt", b"a\0\0not zlib"),
    ],
)
def test_oversized_and_damaged_metadata_is_dropped(bad: bytes) -> None:
    data, notes = tidy_png(png(bad))
    assert kinds(data) == [b"IHDR", b"IDAT", b"IEND"]
    assert [note.reason for note in notes] == ["METADATA_DROPPED"]
    assert png_texts(png(bad)) == {}


def test_many_chunks_share_one_budget() -> None:
    texts = chunk(b"tEXt", b"a\0" + b"x" * ((1 << 20) - 2)) * 20
    data, notes = tidy_png(png(texts))
    assert kinds(data).count(b"tEXt") == 16
    assert len(notes) == 1


def test_a_flood_of_chunks_is_refused() -> None:
    flood = png(chunk(b"tEXt", b"") * MAX_CHUNKS)
    with pytest.raises(CorruptImageError):
        tidy_png(flood)


def test_texts_of_all_three_kinds() -> None:
    data = png(
        chunk(b"tEXt", b"one\0caf\xe9")
        + chunk(b"zTXt", b"two\0\0" + zlib.compress(b"zip"))
        + chunk(b"iTXt", b"three\0\0\0\0\0" + "Möwe".encode())
        + chunk(b"iTXt", b"four\0\x01\0\0\0" + zlib.compress("🌊".encode()))
        + chunk(b"tEXt", b"one\0again")
    )
    assert png_texts(data) == {"one": "café", "two": "zip", "three": "Möwe", "four": "🌊"}
    with pytest.raises(NotAnImageError):
        png_texts(b"GIF89a")
