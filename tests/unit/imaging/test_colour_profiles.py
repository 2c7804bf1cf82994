"""Colours of files with a profile, against formulas and against a colour-managed oracle.

Primaries and the transfer curve are those that SMPTE EG 432-1 (P3, with the D65 white) and IEC 61966-2-1
(sRGB) publish; the matrices are computed from them here, as in SMPTE RP 177.
"""

import io
import struct

import numpy as np
import pytest
from PIL import Image, ImageCms

from sfumato_imaging.reader import read_image, verify_image

SRGB_PRIMARIES = [(0.640, 0.330), (0.300, 0.600), (0.150, 0.060)]
P3_PRIMARIES = [(0.680, 0.320), (0.265, 0.690), (0.150, 0.060)]
D65 = (0.3127, 0.3290)
D50_XYZ = np.array([0.9642, 1.0, 0.8249])
"""Of the profile connection space, ICC.1:2022, 7.2.16."""
BRADFORD = np.array(
    [[0.8951, 0.2664, -0.1614], [-0.7502, 1.7135, 0.0367], [0.0389, -0.0685, 1.0296]]
)
"""ICC.1:2022, annex E."""


def xyz(point: tuple[float, float]) -> np.ndarray:
    x, y = point
    return np.array([x / y, 1.0, (1 - x - y) / y])


def to_xyz(primaries: list[tuple[float, float]]) -> np.ndarray:
    """The matrix from linear light to XYZ with white D65, shape (3, 3)."""
    columns = np.stack([xyz(point) for point in primaries], axis=1)
    return columns * np.linalg.solve(columns, xyz(D65))


def linear(samples: np.ndarray) -> np.ndarray:
    """Linear light of samples in 0..1 by the curve of sRGB, which Display P3 shares."""
    return np.where(samples <= 0.04045, samples / 12.92, ((samples + 0.055) / 1.055) ** 2.4)


def curved(light: np.ndarray) -> np.ndarray:
    light = np.clip(light, 0, 1)
    return np.where(light <= 0.0031308, light * 12.92, 1.055 * light ** (1 / 2.4) - 0.055)


def profile(primaries: list[tuple[float, float]]) -> bytes:
    """A matrix profile of version 2 with the curve of sRGB in 1,024 steps."""
    cone = np.diag((BRADFORD @ D50_XYZ) / (BRADFORD @ xyz(D65)))
    colorants = np.linalg.inv(BRADFORD) @ cone @ BRADFORD @ to_xyz(primaries)
    curve = np.round(linear(np.linspace(0, 1, 1024)) * 65535).astype(">u2").tobytes()
    curve = b"curv" + struct.pack(">2I", 0, 1024) + curve
    words = b"desc" + struct.pack(">2I", 0, 5) + b"test\0" + bytes(11 + 67)
    tags = {b"desc": words, b"cprt": b"text" + bytes(4) + b"none\0", b"wtpt": xyz_tag(D50_XYZ)}
    for name, column in zip((b"rXYZ", b"gXYZ", b"bXYZ"), colorants.T, strict=True):
        tags[name] = xyz_tag(column)
    tags |= dict.fromkeys((b"rTRC", b"gTRC", b"bTRC"), curve)
    table, body = struct.pack(">I", len(tags)), b""
    start = 128 + 4 + 12 * len(tags)
    for name, content in tags.items():
        table += name + struct.pack(">2I", start + len(body), len(content))
        body += content + bytes(-len(content) % 4)
    header = struct.pack(
        ">I4sI4s4s4s", start + len(body), b"", 0x02400000, b"mntr", b"RGB ", b"XYZ "
    )
    header += bytes(12) + b"acsp" + bytes(28) + xyz_tag(D50_XYZ)[8:]
    return header.ljust(128, b"\0") + table + body


def xyz_tag(values: np.ndarray) -> bytes:
    numbers = [round(float(value) * 65536) for value in values]
    return b"XYZ " + bytes(4) + struct.pack(">3i", *numbers)


def encoded(image: Image.Image, format: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def palette() -> np.ndarray:
    """All combinations of seven levels, shape (49, 7, 3)."""
    levels = np.linspace(0, 255, 7).round().astype(np.uint8)
    return np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(49, 7, 3)


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(int)


@pytest.mark.parametrize("format", ["png", "tiff", "webp"])
def test_display_p3_becomes_srgb_by_the_published_primaries(format: str) -> None:
    image = Image.fromarray(palette())
    options = {"lossless": True} if format == "webp" else {}
    data = encoded(image, format, icc_profile=profile(P3_PRIMARIES), **options)
    to_srgb = np.linalg.solve(to_xyz(SRGB_PRIMARIES), to_xyz(P3_PRIMARIES))
    light = linear(palette() / 255) @ to_srgb.T
    expected = curved(light) * 255
    within_gamut = ((light > -1e-3) & (light < 1 + 1e-3)).all(axis=-1)
    assert verify_image(data).notes == ()
    difference = np.abs(pixels(read_image(data)) - expected)
    assert within_gamut.sum() > 100
    assert difference[within_gamut].max() <= 2
    assert np.abs(expected - palette()).max() > 10  # reading it as sRGB would be seen


def test_a_made_up_srgb_profile_changes_next_to_nothing() -> None:
    data = encoded(Image.fromarray(palette()), "png", icc_profile=profile(SRGB_PRIMARIES))
    assert np.abs(pixels(read_image(data)) - palette()).max() <= 1


def press_profile() -> bytes:
    """A CMYK profile with a table of 3^4 nodes to Lab, of inks that only darken (ICC.1:2022, 10.10)."""
    nodes = np.stack(np.meshgrid(*[[0.0, 0.5, 1.0]] * 4, indexing="ij"), axis=-1).reshape(-1, 4)
    lightness = 100 * (1 - nodes[:, 3]) * (1 - 0.3 * nodes[:, :3].sum(axis=1))
    a = 60 * (nodes[:, 1] - nodes[:, 0]) * (1 - nodes[:, 3])
    b = 60 * (nodes[:, 2] - nodes[:, 0]) * (1 - nodes[:, 3])
    # Lab of version 2 in 16 bits: L 0..100 as 0..0xFF00, a and b from -128 in steps of 1 / 256.
    lab = np.stack([lightness * 652.8, (a + 128) * 256, (b + 128) * 256], axis=-1)
    table = np.clip(np.round(lab), 0, 65535).astype(">u2").tobytes()
    straight = np.array([0, 65535], dtype=">u2").tobytes()
    lut = b"mft2" + bytes(4) + bytes([4, 3, 3, 0])
    lut += struct.pack(">9i", 65536, 0, 0, 0, 65536, 0, 0, 0, 65536) + struct.pack(">2H", 2, 2)
    lut += straight * 4 + table + straight * 3
    words = b"desc" + struct.pack(">2I", 0, 5) + b"test\0" + bytes(11 + 67)
    tags = {b"desc": words, b"wtpt": xyz_tag(D50_XYZ), b"A2B0": lut}
    directory, body = struct.pack(">I", len(tags)), b""
    start = 128 + 4 + 12 * len(tags)
    for name, content in tags.items():
        directory += name + struct.pack(">2I", start + len(body), len(content))
        body += content + bytes(-len(content) % 4)
    header = struct.pack(
        ">I4sI4s4s4s", start + len(body), b"", 0x02400000, b"prtr", b"CMYK", b"Lab "
    )
    header += bytes(12) + b"acsp" + bytes(28) + xyz_tag(D50_XYZ)[8:]
    return header.ljust(128, b"\0") + directory + body


def inks() -> Image.Image:
    """Five levels of each of four inks, in blocks of 16 x 16 that JPEG keeps."""
    levels = np.array([0, 64, 128, 192, 255], dtype=np.uint8)
    grid = np.stack(np.meshgrid(*[levels] * 4, indexing="ij"), axis=-1).reshape(25, 25, 4)
    return Image.frombytes("CMYK", (400, 400), grid.repeat(16, 0).repeat(16, 1).tobytes())


def colour_managed(image: Image.Image, source: bytes) -> np.ndarray:
    """What LittleCMS makes of it, called apart from the reader."""
    converted = ImageCms.profileToProfile(
        image,
        ImageCms.ImageCmsProfile(io.BytesIO(source)),
        ImageCms.createProfile("sRGB"),
        renderingIntent=ImageCms.Intent.PERCEPTUAL,
        outputMode="RGB",
    )
    assert converted is not None
    return pixels(converted)


def centres(samples: np.ndarray) -> np.ndarray:
    return samples[8::16, 8::16]


@pytest.mark.parametrize("format", ["tiff", "jpeg"])
def test_cmyk_with_a_profile_is_colour_managed(format: str) -> None:
    options = {"quality": 100, "subsampling": 0} if format == "jpeg" else {}
    data = encoded(inks(), format, icc_profile=press_profile(), **options)
    assert verify_image(data).notes == ()
    decoded = inks()
    if format == "jpeg":
        decoded = Image.open(io.BytesIO(data))
    result = pixels(read_image(data))
    difference = np.abs(centres(result) - centres(colour_managed(decoded, press_profile())))
    assert difference.max() <= 2
    naive = pixels(inks().convert("RGB"))
    assert np.abs(centres(result) - centres(naive)).max() > 20


def without_ink_on_paper(image: Image.Image) -> np.ndarray:
    """Each of red, green and blue is what its ink and black leave of white."""
    samples = np.asarray(image).astype(float) / 255
    return (1 - samples[..., :3]) * (1 - samples[..., 3:]) * 255


@pytest.mark.parametrize("format", ["tiff", "jpeg"])
def test_cmyk_without_a_profile_takes_each_ink_from_white(format: str) -> None:
    options = {"quality": 100, "subsampling": 0} if format == "jpeg" else {}
    data = encoded(inks(), format, **options)
    difference = np.abs(pixels(read_image(data)) - without_ink_on_paper(inks()))
    assert centres(difference).max() <= 2 + (format == "jpeg") * 2


def test_an_adobe_jpeg_holds_its_inks_inverted() -> None:
    data = encoded(inks(), "jpeg", quality=100, subsampling=0)
    marker = data.index(b"Adobe")
    assert data[marker - 4 : marker - 2] == b"\xff\xee"
    # The samples are stored inverted behind this marker (Adobe Technical Note 5116); a reader that misses
    # that would show paper as black.
    result = pixels(read_image(data))
    assert result[8, 8].min() >= 253
    assert result[-8, -8].max() <= 2
