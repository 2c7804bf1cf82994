"""Every kind of file comes out as the same upright, opaque, 8-bit sRGB pixels."""

import contextlib
import io
import struct
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, PngImagePlugin
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from sfumato_imaging.errors import (
    CorruptImageError,
    ImageError,
    ImageTooLargeError,
    NotAnImageError,
    TruncatedImageError,
    UnsupportedPixelsError,
)
from sfumato_imaging.facts import MAX_SIDE
from sfumato_imaging.reader import oriented_size, read_image, verify_image

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)
LOSSY = {"jpeg": 6, "avif": 12, "webp": 0, "png": 0, "bmp": 0, "tiff": 0, "gif": 0, "mpo": 6}


def encoded(image: Image.Image, format: str = "png", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def photo(width: int = 40, height: int = 80, seed: int = 0) -> Image.Image:
    """A smooth picture without any symmetry."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    planes = [x, y, (x * 0.7 + y * 0.3) ** 2]
    pixels = np.stack(np.roll(planes, seed, axis=0), axis=-1)
    return Image.fromarray((pixels * 255).astype(np.uint8))


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(int)


def png_chunk(kind: bytes, payload: bytes) -> bytes:
    checksum = zlib.crc32(kind + payload)
    return struct.pack(">I", len(payload)) + kind + payload + struct.pack(">I", checksum)


def raw_png(width: int, height: int, bits: int, colour_type: int, *chunks: bytes) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, bits, colour_type, 0, 0, 0)
    body = (png_chunk(b"IHDR", header), *chunks, png_chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(body)


def scanlines(*rows: bytes) -> bytes:
    return png_chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))


@pytest.mark.parametrize("format", LOSSY)
def test_every_format_reads_as_the_picture_that_was_saved(format: str) -> None:
    picture = photo()
    if format == "gif":
        picture = picture.quantize(64).convert("RGB")
    options = {"webp": {"lossless": True}, "jpeg": {"quality": 98}, "mpo": {"quality": 98}}
    data = encoded(picture, format, **options.get(format, {}))
    facts = verify_image(data)
    assert (facts.width, facts.height) == (40, 80)
    assert facts.format == ("jpeg" if format == "mpo" else format)
    assert facts.media_type == f"image/{facts.format}"
    assert facts.notes == ()
    difference = np.abs(pixels(read_image(data)) - pixels(picture))
    assert difference.max() <= LOSSY[format]


def test_a_path_and_its_bytes_read_alike_whatever_the_suffix(tmp_path: Path) -> None:
    path = tmp_path / "really_a_jpeg.png"
    path.write_bytes(encoded(photo(), "jpeg"))
    assert verify_image(path).format == "jpeg"
    assert read_image(path).tobytes() == read_image(path.read_bytes()).tobytes()


def test_the_size_needs_no_pixels() -> None:
    png = bytearray(encoded(photo(400, 300)))
    png[png.index(b"IDAT") + 20] ^= 0xFF
    jpeg = encoded(photo(400, 300), "jpeg")[:-1000]
    for data in (bytes(png), jpeg):
        assert oriented_size(data) == (400, 300)
        with pytest.raises(ImageError):
            read_image(data)


def test_a_missing_file_is_an_os_error_and_no_verdict_on_an_image(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / "absent.png")


@pytest.mark.parametrize("format", ["jpeg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied_once(format: str, orientation: int) -> None:
    stored = photo(40, 80)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"webp": {"lossless": True}}.get(format, {})
    data = encoded(stored, format, exif=exif, **options)
    # The rows and columns of TIFF 6.0, "Orientation", as array operations of their own.
    turn = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.transpose(1, 0, 2),
        6: lambda a: a[::-1].transpose(1, 0, 2),
        7: lambda a: a[::-1, ::-1].transpose(1, 0, 2),
        8: lambda a: a.transpose(1, 0, 2)[::-1],
    }[orientation]
    plain = read_image(encoded(stored, format, **options))
    upright = read_image(data)
    assert np.array_equal(pixels(upright), turn(pixels(plain)))
    assert oriented_size(data) == upright.size == ((80, 40) if orientation > 4 else (40, 80))
    assert (verify_image(data).width, verify_image(data).height) == upright.size


def test_orientation_written_after_the_pixels_counts_too() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(photo(40, 80))
    late = data[:-12] + png_chunk(b"eXIf", exif.tobytes()[6:]) + data[-12:]
    assert oriented_size(late) == read_image(late).size == (80, 40)


@pytest.mark.parametrize("background", [(255, 255, 255), (10, 20, 30)])
def test_what_is_transparent_leaves_none_of_its_colour(background: tuple[int, int, int]) -> None:
    image = Image.new("RGBA", (4, 1), (*RED, 0))
    image.putpixel((1, 0), (*RED, 255))
    image.putpixel((2, 0), (0, 0, 0, 128))
    result = read_image(encoded(image), background=background)
    assert result.mode == "RGB"
    assert result.getpixel((0, 0)) == background
    assert result.getpixel((1, 0)) == RED
    expected = [channel * (255 - 128) / 255 for channel in background]
    assert np.abs(np.array(result.getpixel((2, 0))) - expected).max() <= 1


def test_palette_transparency_is_composited() -> None:
    image = Image.new("P", (3, 1))
    image.putpalette([*RED, *GREEN, *BLUE])
    image.putdata([0, 1, 2])
    one = read_image(encoded(image, transparency=0))
    assert [one.getpixel((x, 0)) for x in range(3)] == [(255, 255, 255), GREEN, BLUE]
    many = read_image(encoded(image, transparency=bytes([255, 0, 255])))
    assert [many.getpixel((x, 0)) for x in range(3)] == [RED, (255, 255, 255), BLUE]
    gif = read_image(encoded(image, "gif", transparency=2))
    assert gif.getpixel((2, 0)) == (255, 255, 255)


@pytest.mark.parametrize(
    ("bits", "colour_type", "transparent", "row"),
    [
        (2, 0, b"\x00\x01", b"\x40"),  # grey levels 1, 0 of 0..3
        (4, 0, b"\x00\x07", b"\x70"),
        (8, 0, b"\x00\x50", b"\x50\x00"),
        (16, 0, b"\x12\x34", b"\x12\x34\x00\x00"),
        (8, 2, b"\x00\x0a\x00\x14\x00\x1e", b"\x0a\x14\x1e\x00\x00\x00"),
        (16, 2, b"\x0a\x01\x14\x02\x1e\x03", b"\x0a\x01\x14\x02\x1e\x03" + b"\0" * 6),
    ],
)
def test_a_png_with_one_transparent_colour(
    bits: int, colour_type: int, transparent: bytes, row: bytes
) -> None:
    data = raw_png(2, 1, bits, colour_type, png_chunk(b"tRNS", transparent), scanlines(row))
    result = read_image(data, background=GREEN)
    assert result.getpixel((0, 0)) == GREEN
    assert result.getpixel((1, 0)) == (0, 0, 0)


@pytest.mark.parametrize("format", ["png", "tiff"])
def test_sixteen_bit_grey_is_scaled(format: str) -> None:
    ramp = np.linspace(0, 65535, 256).round().astype(np.uint16).reshape(16, 16)
    result = pixels(read_image(encoded(Image.fromarray(ramp), format)))
    assert np.array_equal(result[..., 0].ravel(), np.arange(256))
    assert np.array_equal(result[..., 0], result[..., 2])


@pytest.mark.parametrize("format", ["png", "tiff"])
def test_every_sixteen_bit_grey_is_within_a_step_and_in_order(format: str) -> None:
    samples = np.arange(65536, dtype=np.uint16)
    data = encoded(Image.fromarray(samples.reshape(256, 256)), format)
    result = pixels(read_image(data))[..., 0].ravel()
    assert np.abs(result / 255 - samples / 65535).max() <= 1 / 255
    assert (np.diff(result) >= 0).all()
    assert (result[0], result[-1]) == (0, 255)


def test_sixteen_bit_grey_where_zero_is_white() -> None:
    ramp = np.array([[0, 65535]], dtype=np.uint16)
    tags = ImageFileDirectory_v2()
    tags[262] = 0
    data = encoded(Image.fromarray(ramp), "tiff", tiffinfo=tags)
    assert pixels(read_image(data))[0, :, 0].tolist() == [255, 0]


@pytest.mark.parametrize("samples", [np.ones((4, 4), np.float32), np.ones((4, 4), np.int32)])
def test_samples_without_a_white_are_refused(samples: np.ndarray) -> None:
    with pytest.raises(UnsupportedPixelsError):
        read_image(encoded(Image.fromarray(samples), "tiff"))


def test_cmyk_without_a_profile() -> None:
    inks = Image.new("CMYK", (16, 16), (0, 255, 255, 0))
    for format in ("jpeg", "tiff"):
        assert np.abs(pixels(read_image(encoded(inks, format)))[8, 8] - RED).max() <= 2


def test_lab_is_converted() -> None:
    white_then_black = Image.new("LAB", (2, 1), (255, 128, 128))
    white_then_black.putpixel((1, 0), (0, 128, 128))
    result = pixels(read_image(encoded(white_then_black, "tiff")))
    assert np.abs(result[0] - [[255] * 3, [0] * 3]).max() <= 1


def swapped_primaries_profile() -> bytes:
    """sRGB with the colorants of red and green exchanged."""
    data = bytearray(ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes())
    entries = {}
    for index in range(struct.unpack_from(">I", data, 128)[0]):
        start = 132 + 12 * index
        entries[bytes(data[start : start + 4])] = start
    red, green = entries[b"rXYZ"], entries[b"gXYZ"]
    data[red : red + 4], data[green : green + 4] = b"gXYZ", b"rXYZ"
    return bytes(data)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
@pytest.mark.parametrize("format", ["png", "tiff"])
def test_an_embedded_profile_is_applied(mode: str, format: str) -> None:
    image = Image.new("RGB", (4, 4), RED).convert(mode)
    result = read_image(encoded(image, format, icc_profile=swapped_primaries_profile()))
    assert np.abs(pixels(result)[0, 0] - GREEN).max() <= 3


def test_an_srgb_profile_changes_nothing() -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    picture = photo()
    assert np.array_equal(
        pixels(read_image(encoded(picture, icc_profile=profile))), pixels(picture)
    )


def test_a_profile_of_another_colour_space_is_ignored_and_said() -> None:
    profile = swapped_primaries_profile()
    data = encoded(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "tiff", icc_profile=profile)
    facts = verify_image(data)
    assert [note.reason for note in facts.notes] == ["COLOUR_PROFILE_IGNORED"]
    data = encoded(photo(), icc_profile=b"not a profile" * 20)
    assert [note.reason for note in verify_image(data).notes] == ["COLOUR_PROFILE_IGNORED"]
    assert np.array_equal(pixels(read_image(data)), pixels(photo()))


@pytest.mark.parametrize("format", ["gif", "webp", "png", "tiff", "avif", "mpo"])
def test_of_several_frames_the_first(format: str) -> None:
    first, second = Image.new("RGB", (16, 16), RED), Image.new("RGB", (16, 16), BLUE)
    data = encoded(first, format, save_all=True, append_images=[second])
    facts = verify_image(data)
    assert [note.reason for note in facts.notes] == ["FIRST_FRAME_USED"]
    assert (facts.format, facts.media_type) == (
        format,
        "image/jpeg" if format == "mpo" else f"image/{format}",
    )
    assert np.abs(pixels(read_image(data))[8, 8] - RED).max() <= 4


@pytest.mark.parametrize(
    "data",
    [b"", b"GIF", b"hello, I am a caption", b"BMW is a car maker, among others",
     b"%!PS-Adobe-3.0 EPSF-3.0", b"P6 1 1 255 \0\0\0", b"<svg/>", b"\0" * 64],
)  # fmt: skip
def test_what_is_no_accepted_image_is_refused(data: bytes) -> None:
    for function in (read_image, verify_image, oriented_size):
        with pytest.raises(NotAnImageError):
            function(data)


@pytest.mark.parametrize("format", LOSSY)
@pytest.mark.parametrize("kept", [0.5, 0.9])
def test_truncated_files_are_refused(format: str, kept: float) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    data = encoded(Image.fromarray(noise), format)
    with pytest.raises(TruncatedImageError) as refusal:
        read_image(data[: int(len(data) * kept)])
    assert refusal.value.reason == "IMAGE_TRUNCATED"


def test_a_png_without_its_end_is_truncated() -> None:
    with pytest.raises(TruncatedImageError):
        verify_image(encoded(photo())[:-12])


def test_damage_inside_is_not_called_truncation() -> None:
    data = bytearray(encoded(photo()))
    data[data.index(b"IDAT") + 20] ^= 0xFF
    with pytest.raises(CorruptImageError):
        read_image(bytes(data))


@pytest.mark.parametrize(
    ("width", "height"),
    [(MAX_SIDE + 1, 1), (1, MAX_SIDE + 1), (16000, 16000), (2**31 - 1, 2**31 - 1)],
)
@pytest.mark.parametrize("function", [read_image, verify_image, oriented_size])
def test_a_bomb_is_refused_by_its_header(function, width: int, height: int) -> None:
    with pytest.raises(ImageTooLargeError):
        function(raw_png(width, height, 8, 2, scanlines(b"\0" * 12)))


def test_a_gif_frame_beyond_its_canvas_is_refused() -> None:
    data = bytearray(encoded(Image.new("L", (8, 8)), "gif"))
    descriptor = data.index(b",\0\0\0\0\x08\0\x08\0")
    struct.pack_into("<HH", data, descriptor + 5, 60000, 60000)
    with pytest.raises(ImageTooLargeError):
        read_image(bytes(data))


def test_an_oversized_file_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    data = encoded(photo())
    monkeypatch.setattr("sfumato_imaging.reader.MAX_FILE_BYTES", len(data) - 1)
    path = tmp_path / "photo.png"
    path.write_bytes(data)
    for source in (data, path):
        with pytest.raises(ImageTooLargeError):
            read_image(source)


def test_oversized_text_is_dropped_and_said() -> None:
    chunks = PngImagePlugin.PngInfo()
    chunks.add_text("comment", "x" * (8 << 20), zip=True)
    data = encoded(photo(), pnginfo=chunks)
    assert len(data) < 1 << 17
    assert [note.reason for note in verify_image(data).notes] == ["METADATA_DROPPED"]
    assert np.array_equal(pixels(read_image(data)), pixels(photo()))


@pytest.mark.filterwarnings("ignore")
def test_what_pillow_only_warns_of_is_refused_whatever_the_callers_filters() -> None:
    exif = b"Exif\0\0II*\0\x08\0\0\0\xff\0" + bytes(6)
    data = encoded(photo(), "jpeg", exif=exif)
    with pytest.raises(CorruptImageError):
        read_image(data)


def test_random_damage_gives_an_image_or_a_typed_refusal() -> None:
    random = np.random.default_rng(7)
    for format in LOSSY:
        data = encoded(photo(24, 16), format)
        for _ in range(60):
            damaged = bytearray(data)
            for position in random.integers(0, len(data), 3):
                damaged[position] = random.integers(0, 256)
            with contextlib.suppress(ImageError):
                assert read_image(bytes(damaged)).mode == "RGB"


def test_reading_in_threads_leaves_the_warning_filters_alone() -> None:
    before = list(warnings.filters)
    data = encoded(photo(256, 256))
    threads = [threading.Thread(target=read_image, args=(data,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings.filters == before
