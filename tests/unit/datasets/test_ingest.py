"""Folders of real files, good and hostile, through the real verifier process."""

import io
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sfumato_chassis.blobs import digest_of
from sfumato_datasets.ingest import (
    FilesRefusedError,
    IngestCancelledError,
    IngestProgress,
    IngestResult,
    NothingImportedError,
    ingest,
)
from sfumato_datasets.intake import IngestOptions
from sfumato_datasets.notes import ImportNote
from sfumato_datasets.sources import UploadedFiles, open_server_folder
from sfumato_datasets.verifier_pool import VerifierPool
from sfumato_imaging.reader import read_image

EMOJI = Path(__file__).parents[3] / "examples" / "emoji"
SKIP = IngestOptions(on_refused="skip")


class MemoryBlobs(dict[str, bytes]):
    def put(self, data: bytes) -> str:
        self[digest_of(data)] = data
        return digest_of(data)


@pytest.fixture(scope="module")
def verifiers() -> Iterator[VerifierPool]:
    with VerifierPool(num_verifiers=2) as verifiers:
        yield verifiers


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "pets").mkdir()
    return tmp_path / "pets"


def encoded(image: Image.Image, format: str = "png", **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=format, **options)
    return buffer.getvalue()


def picture(seed: int = 0, width: int = 40, height: int = 80) -> Image.Image:
    shape = (height, width, 3)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))


def bomb() -> bytes:
    """A few hundred bytes that claim 3.6 gigapixels."""
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n"
    for kind, payload in ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(100))), (b"IEND", b"")):
        checksum = struct.pack(">I", zlib.crc32(kind + payload))
        data += struct.pack(">I", len(payload)) + kind + payload + checksum
    return data


def run(folder: Path, verifiers: VerifierPool, **arguments: object) -> IngestResult:
    arguments.setdefault("blobs", MemoryBlobs())
    with open_server_folder(str(folder), [folder.parent]) as source:
        return ingest(source, verifiers=verifiers, **arguments)


def refused(notes: tuple[ImportNote, ...]) -> dict[str, str]:
    return {note.file_name: note.reason for note in notes if note.refused}


def remarked(notes: tuple[ImportNote, ...]) -> dict[str, str]:
    return {note.file_name: note.reason for note in notes if not note.refused}


def test_the_example_imports_whole(verifiers: VerifierPool) -> None:
    blobs = MemoryBlobs()
    progress: list[IngestProgress] = []
    result = run(EMOJI, verifiers, blobs=blobs, on_progress=progress.append)
    assert result.num_accepted == len(result.manifest.samples) == 24
    assert remarked(result.notes) == dict.fromkeys(
        ("LICENSE", "README.md", "make.py"), "FILE_IGNORED"
    )
    apple = next(s for s in result.manifest.samples if s.file_name == "red_apple.png")
    assert (apple.caption, apple.caption_source) == ("a red apple", "sidecar.txt")
    assert (apple.width, apple.height, apple.media_type) == (64, 64, "image/png")
    assert blobs[apple.image_digest] == (EMOJI / "red_apple.png").read_bytes()
    assert apple.size_bytes == len(blobs[apple.image_digest])
    assert [step.num_files_done for step in progress] == list(range(25))
    assert progress[-1].num_bytes_done == sum(s.size_bytes for s in result.manifest.samples)
    assert {step.num_files for step in progress} == {24}


def test_the_same_files_give_the_same_digest_from_a_folder_or_an_upload(
    verifiers: VerifierPool,
) -> None:
    blobs = MemoryBlobs()
    pairs = [(path.name, blobs.put(path.read_bytes())) for path in EMOJI.iterdir()]
    source = UploadedFiles(pairs, lambda digest, size: blobs[digest][:size])
    uploaded = ingest(source, verifiers=verifiers, blobs=blobs)
    assert uploaded.manifest.digest == run(EMOJI, verifiers).manifest.digest


def test_hostile_files_are_refused_by_name_and_the_good_ones_taken(
    folder: Path, verifiers: VerifierPool
) -> None:
    good = encoded(picture())
    files = {
        "good.png": good,
        "truncated.png": good[: len(good) // 2],
        "text.png": b"I am not an image",
        "empty.jpg": b"",
        "bomb.png": bomb(),
        "float.tiff": encoded(Image.new("F", (4, 4)), "tiff"),
        "cp1252.png": encoded(picture(1)),
        "cp1252.txt": "Möwe".encode("cp1252"),
        "long.png": encoded(picture(2)),
        "long.txt": b"x" * 9000,
        "nul.png": encoded(picture(3)),
        "twin.png": good,
        "twin.jpg": encoded(picture(), "jpeg"),
        "Case.png": good,
        "case.png": good,
        "caf\u00e9.png": good,
        "cafe\u0301.png": good,
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "link.png").symlink_to(EMOJI / "lemon.png")
    blobs = MemoryBlobs()
    result = run(folder, verifiers, options=SKIP, blobs=blobs)
    assert [sample.file_name for sample in result.manifest.samples] == ["good.png"]
    assert set(blobs) == {digest_of(good), result.images[0].previews_digest}
    assert refused(result.notes) == {
        "truncated.png": "IMAGE_TRUNCATED",
        "text.png": "NOT_AN_IMAGE",
        "empty.jpg": "NOT_AN_IMAGE",
        "bomb.png": "IMAGE_TOO_LARGE",
        "float.tiff": "IMAGE_PIXELS_UNSUPPORTED",
        "cp1252.txt": "CAPTION_ENCODING",
        "cp1252.png": "CAPTION_ENCODING",
        "long.txt": "CAPTION_TOO_LONG",
        "long.png": "CAPTION_TOO_LONG",
        "nul.png": "NAME_UNSAFE",
        "twin.png": "STEM_DUPLICATE",
        "twin.jpg": "STEM_DUPLICATE",
        "Case.png": "NAME_COLLISION",
        "case.png": "NAME_COLLISION",
        "caf\u00e9.png": "NAME_COLLISION",
        "cafe\u0301.png": "NAME_COLLISION",
        "link.png": "FILE_UNREADABLE",
    }


def test_uploads_with_hostile_names(verifiers: VerifierPool) -> None:
    blobs = MemoryBlobs()
    digest = blobs.put(encoded(picture()))
    names = ["../a.png", "..", "/etc/a.png", "b\\c.png", "C:d.png", "e.png", "e.png", "f.png"]
    source = UploadedFiles([(name, digest) for name in names], lambda d, size: blobs[d][:size])
    result = ingest(source, verifiers=verifiers, blobs=blobs, options=SKIP)
    assert [sample.file_name for sample in result.manifest.samples] == ["f.png"]
    assert refused(result.notes) == {
        **dict.fromkeys(names[:5], "NAME_UNSAFE"),
        "e.png": "NAME_DUPLICATE",
    }


def test_what_phones_and_tools_write_is_accepted(folder: Path, verifiers: VerifierPool) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    sideways = encoded(picture(width=40, height=80), exif=exif)
    upright = encoded(picture(width=40, height=80).transpose(Image.Transpose.ROTATE_270))
    clear = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    ramp = Image.fromarray(np.linspace(0, 65535, 64).astype(np.uint16).reshape(8, 8))
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    files = {
        "sideways.png": sideways,
        "upright.png": upright,
        "clear.png": encoded(clear),
        "ramp.png": encoded(ramp),
        "print.jpg": encoded(Image.new("CMYK", (8, 8)), "jpeg"),
        "really_a_jpeg.png": encoded(picture(), "jpeg"),
        "phone.jpg": encoded(frames[0], "mpo", save_all=True, append_images=frames[1:]),
        "moving.gif": encoded(frames[0], "gif", save_all=True, append_images=frames[1:]),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    blobs = MemoryBlobs()
    result = run(folder, verifiers, blobs=blobs)
    samples = {sample.file_name: sample for sample in result.manifest.samples}
    assert set(samples) == set(files)
    for name, sample in samples.items():
        image = read_image(blobs[sample.image_digest])
        assert (sample.width, sample.height) == image.size, name
    assert (samples["sideways.png"].width, samples["sideways.png"].height) == (80, 40)
    assert read_image(sideways).tobytes() == read_image(upright).tobytes()
    assert read_image(files["clear.png"]).getpixel((0, 0)) == (255, 255, 255)
    assert len(np.unique(np.asarray(read_image(files["ramp.png"])))) == 64
    assert samples["really_a_jpeg.png"].media_type == "image/jpeg"
    assert remarked(result.notes) == {
        "really_a_jpeg.png": "SUFFIX_WRONG",
        "phone.jpg": "FIRST_FRAME_USED",
        "moving.gif": "FIRST_FRAME_USED",
    }


def test_captions_of_every_kind(folder: Path, verifiers: VerifierPool) -> None:
    for name in "abcdef":
        (folder / f"{name}.png").write_bytes(encoded(picture()))
    (folder / "a.txt").write_bytes("\ufeffa gull\r\n".encode())
    (folder / "a.caption").write_bytes(b"ignored")
    (folder / "b.caption").write_bytes(b"a boat")
    (folder / "c.txt").write_bytes(b"")
    (folder / "metadata.jsonl").write_text(
        '{"file_name": "c.png", "text": "hidden"}\n'
        '{"file_name": "d.png", "text": ["one", "two"]}\n'
        '{"file_name": "absent.png", "text": "x"}\n'
    )
    (folder / "metadata.csv").write_text("file_name,text\nd.png,later\ne.png,from csv\n")
    result = run(folder, verifiers)
    captions = {s.file_name: (s.caption, s.caption_source) for s in result.manifest.samples}
    assert captions == {
        "a.png": ("a gull", "sidecar.txt"),
        "b.png": ("a boat", "sidecar.caption"),
        "c.png": ("", "sidecar.txt"),
        "d.png": ("one", "metadata.jsonl"),
        "e.png": ("from csv", "metadata.csv"),
        "f.png": ("", ""),
    }
    assert remarked(result.notes) == {
        "a.png": "SIDECAR_IGNORED",
        "d.png": "FIRST_CAPTION_USED",
        "metadata.jsonl": "METADATA_WITHOUT_IMAGE",
    }


@pytest.mark.parametrize("on_refused", ["stop", "skip"])
def test_bad_metadata_ends_the_import(
    folder: Path, verifiers: VerifierPool, on_refused: str
) -> None:
    (folder / "a.png").write_bytes(encoded(picture()))
    for name, content in (("metadata.jsonl", b"{"), ("Metadata.jsonl", b"")):
        (folder / name).write_bytes(content)
        blobs = MemoryBlobs()
        with pytest.raises(FilesRefusedError) as stop:
            run(folder, verifiers, options=IngestOptions(on_refused=on_refused), blobs=blobs)
        assert "metadata.jsonl" in refused(stop.value.notes)
        assert blobs == {}


def test_a_caption_column_that_nothing_has_is_refused(
    folder: Path, verifiers: VerifierPool
) -> None:
    (folder / "a.png").write_bytes(encoded(picture()))
    (folder / "metadata.jsonl").write_text('{"file_name": "a.png", "prompt": "a gull"}')
    result = run(folder, verifiers, options=IngestOptions(caption_column="prompt"))
    assert result.manifest.samples[0].caption == "a gull"
    assert remarked(run(folder, verifiers).notes) == {"metadata.jsonl": "METADATA_IGNORED"}
    with pytest.raises(FilesRefusedError, match="absent"):
        run(folder, verifiers, options=IngestOptions(caption_column="absent"))


def test_it_stops_at_the_first_refused_file(folder: Path, verifiers: VerifierPool) -> None:
    for name in ("a.png", "b.png", "d.png"):
        (folder / name).write_bytes(encoded(picture()))
    (folder / "c.png").write_bytes(b"no")
    progress: list[IngestProgress] = []
    heard: list[ImportNote] = []
    with pytest.raises(FilesRefusedError) as stop:
        run(folder, verifiers, on_progress=progress.append, on_note=heard.append)
    assert stop.value.reason == "FILES_REFUSED"
    assert refused(stop.value.notes) == {"c.png": "NOT_AN_IMAGE"}
    assert tuple(heard) == stop.value.notes
    assert progress[-1].num_files_done == 2


def test_nothing_to_import(folder: Path, verifiers: VerifierPool) -> None:
    (folder / "readme.md").write_text("no images")
    with pytest.raises(NothingImportedError):
        run(folder, verifiers)
    (folder / "a.png").write_bytes(b"no")
    with pytest.raises(NothingImportedError) as stop:
        run(folder, verifiers, options=SKIP)
    assert refused(stop.value.notes) == {"a.png": "NOT_AN_IMAGE"}


def test_cancelling_between_two_images(folder: Path, verifiers: VerifierPool) -> None:
    for name in ("a.png", "b.png", "c.png"):
        (folder / name).write_bytes(encoded(picture()))
    progress: list[IngestProgress] = []
    with pytest.raises(IngestCancelledError):
        run(
            folder,
            verifiers,
            on_progress=progress.append,
            cancelled=lambda: progress[-1].num_files_done == 1,
        )
    assert progress[-1].num_files_done == 1


def test_adding_keeps_what_is_there(folder: Path, verifiers: VerifierPool) -> None:
    (folder / "a.png").write_bytes(encoded(picture(0)))
    (folder / "a.txt").write_text("first")
    (folder / "b.png").write_bytes(encoded(picture(1)))
    (folder / "a.png.jpg").write_bytes(encoded(picture(1), "jpeg"))
    first = run(folder, verifiers).manifest
    (folder / "a.txt").write_text("second")
    (folder / "b.png").rename(folder / "B.png")
    (folder / "c.png").write_bytes(encoded(picture(2)))
    (folder / "a.png.jpg").write_bytes(encoded(picture(2), "jpeg"))
    result = run(folder, verifiers, existing=first, options=SKIP)
    assert [s.file_name for s in result.manifest.samples] == [
        "a.png",
        "a.png.jpg",
        "b.png",
        "c.png",
    ]
    assert [s for s in result.manifest.samples if s.file_name != "c.png"] == list(first.samples)
    assert result.num_accepted == 1
    assert remarked(result.notes) == {"a.png": "ALREADY_PRESENT"}
    assert refused(result.notes) == {"B.png": "NAME_TAKEN", "a.png.jpg": "NAME_TAKEN"}


def test_a_file_that_vanishes_is_refused(folder: Path, verifiers: VerifierPool) -> None:
    for name in ("a.png", "b.png"):
        (folder / name).write_bytes(encoded(picture()))

    def remove_b(progress: IngestProgress) -> None:
        (folder / "b.png").unlink(missing_ok=True)

    result = run(folder, verifiers, options=SKIP, on_progress=remove_b)
    assert refused(result.notes) == {"b.png": "FILE_UNREADABLE"}
