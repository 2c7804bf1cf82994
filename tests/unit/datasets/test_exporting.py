import dataclasses
import io
import json
import subprocess
import tarfile
import zipfile
import zlib
from pathlib import Path

import pytest

from sfumato_chassis.blobs import digest_of
from sfumato_datasets import exporting
from sfumato_datasets.exporting import Layout, webdataset_layout, zip_layout
from sfumato_datasets.manifest import Sample

IMAGES = {
    "a.b.png": b"dotted" * 100,
    "a_b.jpg": b"underlined",
    "eine Möwe.webp": b"gull" * 999,
    "no caption.gif": b"frame",
    "tombstone.bmp": b"",
    f"{'long ' * 40}.png": b"long",
}
TYPES = {".png": "png", ".jpg": "jpeg", ".webp": "webp", ".gif": "gif", ".bmp": "bmp"}


def sample(name: str) -> Sample:
    return Sample(
        file_name=name,
        image_digest=digest_of(IMAGES[name]),
        size_bytes=len(IMAGES[name]),
        media_type=f"image/{TYPES[Path(name).suffix]}",
        width=1,
        height=1,
        caption=f"Bild von {name}",
        caption_source="edit",
        tags=("x", "ü"),
    )


SAMPLES = [sample(name) for name in sorted(IMAGES)]
CHANGES = {
    "no caption.gif": {"caption": "", "caption_source": "", "tags": ()},
    "tombstone.bmp": {"caption": ""},
    "a_b.jpg": {"caption_variants": ("ein Strich", "noch einer")},
}
SAMPLES = [
    dataclasses.replace(each, **CHANGES.get(each.file_name, {}))  # type: ignore[arg-type]
    for each in SAMPLES
]
BY_DIGEST = {digest_of(data): data for data in IMAGES.values()}


def crc32_of(sample: Sample) -> int:
    return zlib.crc32(BY_DIGEST[sample.image_digest])


def read(layout: Layout, offset: int = 0) -> bytes:
    return b"".join(
        (part if isinstance(part, bytes) else BY_DIGEST[part.digest])[start:]
        for part, start in layout.after(offset)
    )


def test_a_zip_holds_images_captions_and_metadata(tmp_path: Path) -> None:
    data = read(zip_layout(SAMPLES, crc32_of))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        for name, content in IMAGES.items():
            assert archive.read(name) == content
        captions = {name for name in archive.namelist() if name.endswith(".txt")}
        assert captions == {
            f"{each.file_name.rpartition('.')[0]}.txt"
            for each in SAMPLES
            if each.file_name not in {"no caption.gif", "a_b.jpg"}
        }
        assert archive.read("tombstone.txt") == b""
        assert archive.read("eine Möwe.txt").decode() == "Bild von eine Möwe.webp"
        rows = [json.loads(row) for row in archive.read("metadata.jsonl").splitlines()]
    by_name = {row["file_name"]: row for row in rows}
    assert by_name["a_b.jpg"] == {
        "file_name": "a_b.jpg",
        "text": ["Bild von a_b.jpg", "ein Strich", "noch einer"],
        "tags": ["x", "ü"],
    }
    assert by_name["no caption.gif"] == {"file_name": "no caption.gif"}
    path = tmp_path / "export.zip"
    path.write_bytes(data)
    subprocess.run(["python3", "-m", "zipfile", "-t", str(path)], check=True, timeout=60)


def test_a_webdataset_holds_each_sample_under_one_key() -> None:
    with tarfile.open(fileobj=io.BytesIO(read(webdataset_layout(SAMPLES, crc32_of)))) as archive:
        names = archive.getnames()
        contents = {name: archive.extractfile(name) for name in names}
        read_back = {name: file.read() for name, file in contents.items() if file is not None}
    keys = [name.partition(".")[0] for name in names]
    assert len(set(keys)) == len(SAMPLES)
    assert keys == sorted(keys, key=keys.index)
    assert {"a_b.png", "a_b_2.jpg", "a_b.txt", "a_b_2.json"} <= set(names)
    assert read_back["a_b.png"] == IMAGES["a.b.png"]
    assert json.loads(read_back["a_b.json"])["file_name"] == "a.b.png"
    assert json.loads(read_back["a_b_2.json"])["text"][1:] == ["ein Strich", "noch einer"]


@pytest.mark.parametrize("layout_of", [zip_layout, webdataset_layout])
def test_the_bytes_are_the_same_from_every_offset_on(layout_of: object) -> None:
    layout = layout_of(SAMPLES, crc32_of)  # type: ignore[operator]
    whole = read(layout)
    assert len(whole) == layout.size_bytes
    assert read(layout_of(SAMPLES, crc32_of)) == whole  # type: ignore[operator]
    for offset in range(0, len(whole) + 1, 97):
        assert read(layout, offset) == whole[offset:]
    assert read(layout, len(whole)) == b""


def test_a_zip_beyond_the_limits_of_the_old_format_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    # As if two bytes held 3 and four bytes 100: the reader must find its way by the Zip64 records.
    monkeypatch.setattr(exporting, "_MAX_16", 3)
    layout = zip_layout(SAMPLES, crc32_of)
    data = read(layout).replace(
        b"PK\x05\x06\0\0\0\0\x03\0\x03\0", b"PK\x05\x06\0\0\0\0\xff\xff\xff\xff"
    )
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == 11


class LaidOut(io.RawIOBase):
    """An archive as a file, of which nothing is held; images are zeros."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {0: 0, 1: self._at, 2: self._layout.size_bytes}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        data = b""
        for part, start in self._layout.after(self._at):
            wanted = len(buffer) - len(data)
            if isinstance(part, bytes):
                data += part[start : start + wanted]
            else:
                data += bytes(min(wanted, part.size_bytes - start))
            if len(data) == len(buffer):
                break
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def test_a_zip_of_more_than_four_gibibytes_is_read_to_its_end() -> None:
    large = dataclasses.replace(SAMPLES[0], size_bytes=(1 << 32) - 1, file_name="1.png")
    small = dataclasses.replace(large, size_bytes=5, file_name="2.png", caption="the last")
    layout = zip_layout([large, small], lambda sample: zlib.crc32(bytes(5)))
    assert layout.size_bytes > 1 << 32
    with zipfile.ZipFile(LaidOut(layout)) as archive:  # type: ignore[arg-type]
        assert archive.namelist() == ["metadata.jsonl", "1.png", "1.txt", "2.png", "2.txt"]
        assert archive.getinfo("1.png").file_size == (1 << 32) - 1
        assert archive.read("2.png") == bytes(5)
        assert archive.read("2.txt") == b"the last"
