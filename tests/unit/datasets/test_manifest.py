import dataclasses
import hashlib
import json

import pytest

from sfumato_datasets.library import (
    DatasetNotEmptyError,
    ImportMode,
    check_mode,
    contents_of,
    load_manifest,
    samples_after,
    store_manifest,
)
from sfumato_datasets.manifest import Manifest, ManifestError, Sample, digest_of

SAMPLE = Sample(
    file_name="a.png",
    image_digest=digest_of(b"a"),
    size_bytes=10,
    media_type="image/png",
    width=40,
    height=80,
    caption="eine Möwe\nüber Zürich",
    caption_source="sidecar.txt",
    mask_digest=digest_of(b"mask"),
    tags=("bird", "city"),
)
OTHER = dataclasses.replace(SAMPLE, file_name="B.png", caption="", tags=(), mask_digest=None)


class DictBlobs(dict[str, bytes]):
    def put(self, data: bytes) -> str:
        self[digest_of(data)] = data
        return digest_of(data)

    def get(self, digest: str) -> bytes:
        return self[digest]


def test_order_of_samples_does_not_matter_and_every_field_does() -> None:
    manifest = Manifest.of([SAMPLE, OTHER])
    assert manifest == Manifest.of([OTHER, SAMPLE])
    assert [sample.file_name for sample in manifest.samples] == ["B.png", "a.png"]
    digests = {manifest.digest}
    for field in dataclasses.fields(Sample):
        value = {"width": 41, "height": 81, "size_bytes": 11, "tags": ("city",)}.get(
            field.name, "z"
        )
        changed = dataclasses.replace(SAMPLE, **{field.name: value})
        digests.add(Manifest.of([changed, OTHER]).digest)
    assert len(digests) == 1 + len(dataclasses.fields(Sample))


def test_the_bytes_are_canonical_json_and_the_digest_is_theirs() -> None:
    manifest = Manifest.of([SAMPLE])
    data = manifest.to_bytes()
    assert manifest.digest == "sha256:" + hashlib.sha256(data).hexdigest()
    document = json.loads(data)
    again = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert again.encode() == data
    assert document["samples"][0]["caption"] == SAMPLE.caption


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="once"):
        Manifest.of([SAMPLE, SAMPLE])


def test_stored_and_read_back() -> None:
    blobs = DictBlobs()
    manifest = Manifest.of([SAMPLE, OTHER])
    contents = store_manifest(manifest, blobs)
    assert load_manifest(contents.digest, blobs) == manifest
    assert (contents.num_samples, contents.size_bytes, contents.num_captioned) == (2, 20, 1)
    with pytest.raises(LookupError):
        load_manifest(digest_of(b"absent"), blobs)


def test_damaged_and_foreign_bytes_are_refused() -> None:
    manifest = Manifest.of([SAMPLE])
    with pytest.raises(ManifestError) as refusal:
        Manifest.from_bytes(manifest.to_bytes() + b" ", digest=manifest.digest)
    assert refusal.value.reason == "BLOB_CORRUPT"
    for data in (
        b"{}",
        b"[]",
        b"\xff",
        b'{"format":2,"samples":[]}',
        b'{"format":1,"samples":[{}]}',
    ):
        with pytest.raises(ManifestError):
            Manifest.from_bytes(data, digest=digest_of(data))


def test_pages_by_name() -> None:
    names = [f"{number:02}.png" for number in range(7)]
    manifest = Manifest.of(dataclasses.replace(SAMPLE, file_name=name) for name in names)
    seen: list[str] = []
    while page := samples_after(manifest, seen[-1] if seen else "", 3):
        seen += [sample.file_name for sample in page]
    assert seen == names


def test_an_import_that_needs_an_empty_dataset() -> None:
    full, empty = contents_of(Manifest.of([SAMPLE])), contents_of(Manifest.of([]))
    for latest in (None, empty):
        check_mode(ImportMode.REQUIRE_EMPTY, latest)
    check_mode(ImportMode.ADD, full)
    with pytest.raises(DatasetNotEmptyError):
        check_mode(ImportMode.REQUIRE_EMPTY, full)
