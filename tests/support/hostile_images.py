"""Files that nobody should send as pictures or captions, each with the answer it is due."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from PIL import Image, PngImagePlugin

from pictures import picture

FORMATS = {
    "png": "png",
    "jpeg": "jpg",
    "webp": "webp",
    "bmp": "bmp",
    "gif": "gif",
    "tiff": "tiff",
    "avif": "avif",
    "mpo": "mpo",
}
"""Format to suffix."""
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, kw_only=True)
class FileCase:
    """A file, those beside it, and what is said of it.

    `reason` is that of its note, empty where nothing is said; `beside` are its caption files.
    """

    name: str
    file_name: str
    data: bytes
    reason: str
    accepted: bool = False
    beside: Mapping[str, bytes] = field(default_factory=dict)


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    """The file that Pillow makes of an image."""
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def noise(side: int = 32, seed: int = 0) -> Image.Image:
    """A picture that does not compress."""
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (side, side, 3), dtype=np.uint8))


def png_chunk(kind: bytes, payload: bytes) -> bytes:
    """Length, kind, payload and checksum."""
    checksum = zlib.crc32(kind + payload)
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", checksum)


def png_of_size(width: int, height: int, rows: bytes = b"") -> bytes:
    """A grey PNG whose header says so, whatever pixels follow."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    pixels = png_chunk(b"IDAT", zlib.compress(rows, 9))
    return PNG_SIGNATURE + png_chunk(b"IHDR", header) + pixels + png_chunk(b"IEND", b"")


def png_with(*chunks: bytes) -> bytes:
    """A good PNG with these chunks behind its header."""
    data = picture(5)
    return data[:33] + b"".join(chunks) + data[33:]


def png_with_large_text() -> bytes:
    """Eight MiB of text in a few KiB."""
    texts = PngImagePlugin.PngInfo()
    texts.add_text("comment", "x" * (8 << 20), zip=True)
    return encoded(noise(), "png", pnginfo=texts)


def gif_of_frames(count: int) -> bytes:
    """The frame of a small GIF, so many times."""
    data = encoded(Image.new("L", (2, 2), 9), "gif")
    start = data.index(b",\0\0\0\0")
    return data[:start] + data[start:-1] * count + data[-1:]


def tiff_that_goes_round() -> bytes:
    """Its directory is followed by itself."""
    data = bytearray(encoded(noise(8), "tiff"))
    (directory,) = struct.unpack_from("<I", data, 4)
    (num_tags,) = struct.unpack_from("<H", data, directory)
    struct.pack_into("<I", data, directory + 2 + 12 * num_tags, directory)
    return bytes(data)


def gif_frame_beyond_its_canvas() -> bytes:
    """The header says 8 x 8, the frame 60,000 x 60,000."""
    data = bytearray(encoded(Image.new("L", (8, 8)), "gif"))
    struct.pack_into("<HH", data, data.index(b",\0\0\0\0\x08\0\x08\0") + 5, 60000, 60000)
    return bytes(data)


def bmp_of_size(width: int, height: int) -> bytes:
    """A small BMP whose header says another size."""
    data = bytearray(encoded(noise(4), "bmp"))
    struct.pack_into("<ii", data, 18, width, height)
    return bytes(data)


def _of_formats() -> list[FileCase]:
    cases = []
    for index, (format, suffix) in enumerate(FORMATS.items()):
        data = encoded(noise(64, seed=index), format)
        cases.append(
            FileCase(
                name=f"truncated {format}",
                file_name=f"truncated_{format}.{suffix}",
                data=data[: len(data) * 6 // 10],
                reason="IMAGE_TRUNCATED",
            )
        )
    return cases


def _not_images() -> list[FileCase]:
    contents = {
        "empty.png": b"",
        "text.png": b"a picture of a dog",
        "page.jpg": b"<!doctype html><html><body>404</body></html>",
        "drawing.png": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        "document.webp": b"%PDF-1.7\n%\xe2\xe3\xcf\xd3",
        "postscript.tiff": b"%!PS-Adobe-3.0 EPSF-3.0\n",
        "program.gif": b"MZ\x90\0" + bytes(200),
        "archive.png": b"PK\x03\x04" + bytes(60),
        "signature_alone.jpg": b"\xff\xd8",
    }
    return [
        FileCase(name=f"{name} is none", file_name=name, data=data, reason="NOT_AN_IMAGE")
        for name, data in contents.items()
    ]


def _bombs() -> list[FileCase]:
    contents = {
        "bomb_by_pixels.png": png_of_size(30000, 30000, bytes(30001) * 100),
        "side_16385.png": png_of_size(16385, 1, bytes(16386)),
        "largest_sides.png": png_of_size(2**31 - 1, 2**31 - 1),
        "bitmap_bomb.bmp": bmp_of_size(30000, 30000),
        "frame_bomb.gif": gif_frame_beyond_its_canvas(),
    }
    cases = [
        FileCase(name=f"{name} is too large", file_name=name, data=data, reason="IMAGE_TOO_LARGE")
        for name, data in contents.items()
    ]
    many_chunks = png_with(png_chunk(b"tIME", bytes(7)) * 200_001)
    samples = Image.fromarray(np.ones((4, 4), np.float32))
    absurd_exif = b"Exif\0\0II*\0\x08\0\0\0\xff\0" + bytes(6)
    return [
        *cases,
        FileCase(
            name="more chunks than any PNG has",
            file_name="chunks.png",
            data=many_chunks,
            reason="IMAGE_CORRUPT",
        ),
        FileCase(
            name="EXIF that says it has 255 entries and has none",
            file_name="absurd_exif.jpg",
            data=encoded(noise(), "jpeg", exif=absurd_exif),
            reason="IMAGE_CORRUPT",
        ),
        FileCase(
            name="samples without a white",
            file_name="float.tiff",
            data=encoded(samples, "tiff"),
            reason="IMAGE_PIXELS_UNSUPPORTED",
        ),
    ]


def _accepted_images() -> list[FileCase]:
    second = noise(16, seed=91)
    frames = {"save_all": True, "append_images": [second]}
    contents = {
        "side_16384.png": (png_of_size(16384, 1, bytes(16385)), ""),
        "really_a_jpeg.png": (encoded(noise(seed=50), "jpeg"), "SUFFIX_WRONG"),
        "phone.jpg": (encoded(noise(16, seed=51), "mpo", **frames), "FIRST_FRAME_USED"),
        "animated.png": (encoded(noise(16, seed=52), "png", **frames), "FIRST_FRAME_USED"),
        "frames.gif": (gif_of_frames(10_000), "FIRST_FRAME_USED"),
        "round.tiff": (tiff_that_goes_round(), ""),
        "large_text.png": (png_with_large_text(), "METADATA_DROPPED"),
        "large_profile.png": (
            png_with(png_chunk(b"iCCP", b"p\0\0" + zlib.compress(bytes(64 << 20), 9))),
            "METADATA_DROPPED",
        ),
        "no_profile.png": (
            encoded(noise(seed=53), "png", icc_profile=b"not a profile" * 20),
            "COLOUR_PROFILE_IGNORED",
        ),
    }
    return [
        FileCase(
            name=f"{name} is accepted", file_name=name, data=data, reason=reason, accepted=True
        )
        for name, (data, reason) in contents.items()
    ]


def _left_out() -> list[FileCase]:
    reasons = {
        "clip.mp4": "MEDIA_UNSUPPORTED",
        "photo.heic": "MEDIA_UNSUPPORTED",
        "logo.svg": "FILE_IGNORED",
        "paper.pdf": "FILE_IGNORED",
        "script.py": "FILE_IGNORED",
        "inner.zip": "FILE_IGNORED",
        ".hidden.png": "FILE_IGNORED",
        "orphan.txt": "CAPTION_WITHOUT_IMAGE",
    }
    return [
        FileCase(name=f"{name} is left out", file_name=name, data=b"anything", reason=reason)
        for name, reason in reasons.items()
    ]


def _captions() -> list[FileCase]:
    refused = {
        "too_long": (b"x" * 8193, "CAPTION_TOO_LONG"),
        "ten_megabytes": (b"word " * (2 << 20), "FILE_TOO_LARGE"),
        "with_nul": (b"a\0b", "CAPTION_ENCODING"),
        "windows_1252": ("Größe".encode("cp1252"), "CAPTION_ENCODING"),
        "utf_16": ("a dog".encode("utf-16"), "CAPTION_ENCODING"),
        "utf_16_without_mark": ("a dog".encode("utf-16-le"), "CAPTION_ENCODING"),
        "half_a_pair": (b"\xed\xa0\x80", "CAPTION_ENCODING"),
        "overlong": (b"\xc0\xaf", "CAPTION_ENCODING"),
    }
    taken = {
        "longest": "ä".encode() * 8192,
        "with_mark": b"\xef\xbb\xbfa dog",
        "windows_lines": b"a dog\r\non a mat\r\n",
        "tombstone": b"",
    }
    cases = []
    for index, (stem, (caption, reason)) in enumerate(refused.items()):
        cases.append(_captioned(stem, caption, reason, 100 + index, accepted=False))
    for index, (stem, caption) in enumerate(taken.items()):
        cases.append(_captioned(stem, caption, "", 120 + index, accepted=True))
    two = {"two_captions.txt": b"first", "two_captions.caption": b"second"}
    return [
        *cases,
        FileCase(
            name="of two sidecars the first wins",
            file_name="two_captions.png",
            data=picture(140),
            reason="SIDECAR_IGNORED",
            accepted=True,
            beside=two,
        ),
    ]


def _captioned(stem: str, caption: bytes, reason: str, index: int, *, accepted: bool) -> FileCase:
    return FileCase(
        name=f"caption {stem}",
        file_name=f"{stem}.png",
        data=picture(index),
        reason=reason,
        accepted=accepted,
        beside={f"{stem}.txt": caption},
    )


def file_cases() -> list[FileCase]:
    """Every case; no two share a stem."""
    return [
        *_of_formats(),
        *_not_images(),
        *_bombs(),
        *_accepted_images(),
        *_left_out(),
        *_captions(),
    ]
