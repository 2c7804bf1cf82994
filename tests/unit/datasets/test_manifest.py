import dataclasses
import hashlib
import json
import random

import pytest

from sfumato_chassis.blobs import digest_of
from sfumato_datasets.library import (
    DatasetNotEmptyError,
    ImportMode,
    ManifestReader,
    SampleFilter,
    VersionContents,
    check_mode,
)
from sfumato_datasets.manifest import (
    MAX_BLOCK_SAMPLES,
    Manifest,
    ManifestError,
    ManifestIndex,
    Sample,
    index_of,
    read_manifest,
)

SAMPLE = Sample(
    file_name="a.png",
    image_digest=digest_of(b"a"),
    size_bytes=10,
    media_type="image/png",
    width=40,
    height=80,
    caption="eine Möwe\nüber Zürich",
    caption_variants=("a gull",),
    caption_source="sidecar.txt",
    mask_digest=digest_of(b"mask"),
    tags=("bird", "city"),
)
OTHER = dataclasses.replace(SAMPLE, file_name="B.png", caption="", tags=(), mask_digest=None)


class StoredBlobs(dict[str, bytes]):
    """Blobs in memory, and how many were read."""

    num_read = 0

    def put(self, data: bytes) -> str:
        self[digest_of(data)] = data
        return digest_of(data)

    def read(self, digest: str) -> bytes:
        self.num_read += 1
        return self[digest]

    def put_manifest(self, manifest: Manifest) -> str:
        blocks = manifest.blocks()
        for block in blocks:
            self.put(block.to_bytes())
        return self.put(index_of(blocks).to_bytes())


def numbered(count: int) -> list[Sample]:
    return [dataclasses.replace(SAMPLE, file_name=f"{number:05}.png") for number in range(count)]


def test_order_of_samples_does_not_matter_and_every_field_does() -> None:
    manifest = Manifest.of([SAMPLE, OTHER])
    assert manifest == Manifest.of([OTHER, SAMPLE])
    assert [sample.file_name for sample in manifest.samples] == ["B.png", "a.png"]
    digests = {manifest.digest}
    others = {
        "width": 41,
        "height": 81,
        "size_bytes": 11,
        "tags": ("city",),
        "caption_variants": (),
    }
    for field in dataclasses.fields(Sample):
        changed = dataclasses.replace(SAMPLE, **{field.name: others.get(field.name, "z")})
        digests.add(Manifest.of([changed, OTHER]).digest)
    assert len(digests) == 1 + len(dataclasses.fields(Sample))


def test_the_bytes_are_canonical_json_and_the_digest_is_theirs() -> None:
    manifest = Manifest.of([SAMPLE])
    index = index_of(manifest.blocks()).to_bytes()
    assert manifest.digest == "sha256:" + hashlib.sha256(index).hexdigest()
    for data in (index, manifest.blocks()[0].to_bytes()):
        text = json.dumps(
            json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
        assert data == text.encode("utf-8")


def test_a_manifest_without_samples_is_one() -> None:
    blobs = StoredBlobs()
    digest = blobs.put_manifest(Manifest(samples=()))
    assert read_manifest(digest, blobs.read) == Manifest(samples=())


def test_a_name_stands_once() -> None:
    with pytest.raises(ValueError, match="once"):
        Manifest.of([SAMPLE, SAMPLE])


def test_what_was_stored_is_read_back_whole_and_in_part() -> None:
    blobs = StoredBlobs()
    manifest = Manifest.of(numbered(1000))
    digest = blobs.put_manifest(manifest)
    assert digest == manifest.digest
    assert read_manifest(digest, blobs.read) == manifest
    reader = ManifestReader(blobs.read)
    assert tuple(reader.samples_after(digest, "")) == manifest.samples
    after = [sample.file_name for sample in reader.samples_after(digest, "00499.png")]
    assert after == [sample.file_name for sample in manifest.samples[500:]]
    between = [sample.file_name for sample in reader.samples_after(digest, "00499.pnz")]
    assert between == after
    assert list(reader.samples_after(digest, "zzz")) == []


def test_a_page_reads_the_index_and_the_blocks_that_hold_it() -> None:
    blobs = StoredBlobs()
    digest = blobs.put_manifest(Manifest.of(numbered(10_000)))
    reader = ManifestReader(blobs.read)
    samples = reader.samples_after(digest, "05000.png")
    for number in range(5001, 5051):
        assert next(samples).file_name == f"{number:05}.png"
    assert blobs.num_read <= 5


def test_blocks_follow_from_the_samples_alone() -> None:
    samples = numbered(2000)
    shuffled = random.Random(0).sample(samples, len(samples))
    assert Manifest.of(shuffled).blocks() == Manifest.of(samples).blocks()
    sizes = [len(block.samples) for block in Manifest.of(samples).blocks()]
    assert sum(sizes) == 2000
    assert max(sizes) <= MAX_BLOCK_SAMPLES
    assert 20 <= len(sizes) <= 60


def test_versions_share_the_blocks_in_which_they_agree() -> None:
    samples = numbered(2000)
    edited = [*samples[:700], dataclasses.replace(samples[700], caption="new"), *samples[701:]]
    shorter = [*samples[:300], *samples[301:]]
    before = {block.digest for block in index_of(Manifest.of(samples).blocks()).blocks}
    for changed in (edited, shorter):
        after = {block.digest for block in index_of(Manifest.of(changed).blocks()).blocks}
        assert len(after - before) <= 2


@pytest.mark.parametrize("damage", ["index", "block"])
def test_damaged_bytes_are_no_manifest(damage: str) -> None:
    blobs = StoredBlobs()
    digest = blobs.put_manifest(Manifest.of([SAMPLE]))
    at = digest if damage == "index" else next(key for key in blobs if key != digest)
    blobs[at] = blobs[at].replace(b":", b";", 1)
    with pytest.raises(ManifestError):
        read_manifest(digest, blobs.read)
    del blobs[at]
    with pytest.raises(LookupError):
        read_manifest(digest, blobs.read)


@pytest.mark.parametrize(
    "data",
    [b"[]", b"{", b'{"format":2}', b'{"format":9,"blocks":[]}', b'{"format":2,"blocks":[1]}'],
)
def test_other_json_is_no_manifest(data: bytes) -> None:
    with pytest.raises(ManifestError):
        ManifestIndex.from_bytes(data, digest=digest_of(data))


def test_an_import_that_needs_an_empty_dataset_is_refused_where_there_are_samples() -> None:
    empty = VersionContents(digest="", num_samples=0, size_bytes=0, num_captioned=0)
    full = dataclasses.replace(empty, num_samples=1)
    check_mode(ImportMode.REQUIRE_EMPTY, None)
    check_mode(ImportMode.REQUIRE_EMPTY, empty)
    check_mode(ImportMode.ADD, full)
    with pytest.raises(DatasetNotEmptyError):
        check_mode(ImportMode.REQUIRE_EMPTY, full)


@pytest.mark.parametrize(
    ("fitting", "expected"),
    [
        (SampleFilter(), True),
        (SampleFilter(caption_contains="MÖWE"), True),
        (SampleFilter(caption_contains="Gull"), True),
        (SampleFilter(caption_contains="dog"), False),
        (SampleFilter(tag="bird"), True),
        (SampleFilter(tag="bir"), False),
        (SampleFilter(tag="bird", caption_contains="dog"), False),
        (SampleFilter(missing_caption=True), False),
    ],
)
def test_a_filter_means_what_fits_all_of_it(fitting: SampleFilter, expected: bool) -> None:
    assert fitting.fits(SAMPLE) is expected
    assert SampleFilter(missing_caption=True).fits(OTHER)
