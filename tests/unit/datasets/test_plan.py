from sfumato_datasets.captions import CaptionSource
from sfumato_datasets.plan import ImportPlan, plan_import
from sfumato_datasets.sources import FileKind, SourceEntry


def plan(*names: str) -> ImportPlan:
    return plan_import([SourceEntry(name=name) for name in names])


def reasons(result: ImportPlan) -> dict[str, tuple[str, bool]]:
    return {note.file_name: (note.reason, note.refused) for note in result.notes}


def test_images_with_their_sidecars() -> None:
    result = plan("b.JPG", "b.caption", "a.png", "a.txt", "A.caption", "metadata.csv", "c.gif")
    assert [(image.file_name, dict(image.sidecars)) for image in result.images] == [
        ("a.png", {CaptionSource.TXT: "a.txt", CaptionSource.CAPTION: "A.caption"}),
        ("b.JPG", {CaptionSource.CAPTION: "b.caption"}),
        ("c.gif", {}),
    ]
    assert result.metadata == (CaptionSource.METADATA_CSV,)
    assert result.notes == ()


def test_metadata_in_order_of_precedence() -> None:
    assert plan("metadata.csv", "captions.jsonl", "metadata.jsonl").metadata == (
        CaptionSource.METADATA_JSONL,
        CaptionSource.CAPTIONS_JSONL,
        CaptionSource.METADATA_CSV,
    )


def test_other_files_are_left_out_and_said() -> None:
    entries = [SourceEntry(name=name) for name in ("a.png", "LICENSE", "b.txt", "._a.png", ".jpg")]
    entries.append(SourceEntry(name="masks", kind=FileKind.FOLDER))
    assert reasons(plan_import(entries)) == {
        "LICENSE": ("FILE_IGNORED", False),
        "b.txt": ("CAPTION_WITHOUT_IMAGE", False),
        "._a.png": ("FILE_IGNORED", False),
        ".jpg": ("FILE_IGNORED", False),
        "masks": ("FOLDER_IGNORED", False),
    }


def test_clips_and_unread_image_formats_are_refused() -> None:
    assert reasons(plan("a.mp4", "b.HEIC")) == {
        "a.mp4": ("MEDIA_UNSUPPORTED", True),
        "b.HEIC": ("MEDIA_UNSUPPORTED", True),
    }


def test_names_that_mean_one_file_somewhere_are_all_refused() -> None:
    nfc, nfd = "caf\u00e9.png", "cafe\u0301.png"
    result = plan("a.png", "A.png", nfc, nfd, "b.png", "c.png", "c.png")
    assert [image.file_name for image in result.images] == ["b.png"]
    assert reasons(result) == {
        "a.png": ("NAME_COLLISION", True),
        "A.png": ("NAME_COLLISION", True),
        nfc: ("NAME_COLLISION", True),
        nfd: ("NAME_COLLISION", True),
        "c.png": ("NAME_DUPLICATE", True),
    }


def test_images_of_one_stem_are_all_refused() -> None:
    result = plan("a.png", "a.jpg", "a.txt", "b.png")
    assert [image.file_name for image in result.images] == ["b.png"]
    assert reasons(result) == {
        "a.png": ("STEM_DUPLICATE", True),
        "a.jpg": ("STEM_DUPLICATE", True),
    }


def test_unsafe_names_are_refused_and_printed_safely() -> None:
    result = plan("../a.png", "con.png", "b\n.png", "\udcff.png", "c/d.png")
    assert result.images == ()
    assert reasons(result) == {
        "../a.png": ("NAME_UNSAFE", True),
        "con.png": ("NAME_UNSAFE", True),
        "b\\n.png": ("NAME_UNSAFE", True),
        "\\udcff.png": ("NAME_UNSAFE", True),
        "c/d.png": ("NAME_UNSAFE", True),
    }


def test_an_image_goes_with_its_refused_sidecar() -> None:
    entries = [SourceEntry(name=name) for name in ("a.png", "b.png", "b.txt", "B.txt")]
    entries.append(SourceEntry(name="a.txt", kind=FileKind.OTHER))
    result = plan_import(entries)
    assert result.images == ()
    found = reasons(result)
    assert found["a.txt"] == ("FILE_UNREADABLE", True)
    assert found["a.png"] == found["b.png"] == ("CAPTION_REFUSED", True)
