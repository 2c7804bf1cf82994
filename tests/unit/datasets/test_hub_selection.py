import pytest

from sfumato_datasets.hub_request import (
    HubNotFoundError,
    HubRequest,
    HubTooLargeError,
    HubUnsupportedError,
)
from sfumato_datasets.hub_selection import select_files

CATS = HubRequest(id="org/cats")


def sizes(*paths: str, size_bytes: int = 100) -> dict[str, int]:
    return dict.fromkeys(paths, size_bytes)


def test_images_with_what_describes_them() -> None:
    selection = select_files(
        sizes(
            "README.md",
            ".gitattributes",
            "LICENSE",
            "metadata.jsonl",
            "test/metadata.jsonl",
            "train/a.png",
            "train/a.txt",
            "train/b.JPG",
            "train/c.caption",
            "train/metadata.csv",
            "train/.hidden/d.png",
            "train/clip.mp4",
        ),
        CATS,
    )
    assert selection.images == ("train/a.png", "train/b.JPG")
    assert selection.sidecars == ("train/a.txt",)
    assert selection.metadata == ("metadata.jsonl", "train/metadata.csv")
    left_out = {"test/metadata.jsonl", "train/c.caption", "train/.hidden/d.png", "train/clip.mp4"}
    assert selection.num_left_out == len(left_out)
    assert not selection.parquet


def test_max_samples_takes_the_first_images_with_their_captions() -> None:
    files = sizes("b/metadata.csv", "b/b.png", "b/b.txt", "a/a.png", "a/metadata.csv")
    selection = select_files(files, HubRequest(id="org/cats", max_samples=1))
    assert (selection.images, selection.sidecars) == (("a/a.png",), ())
    assert selection.metadata == ("a/metadata.csv",)
    assert selection.num_left_out == 0, "what was not asked for is not left out"


def test_sidecars_are_found_as_in_every_import() -> None:
    files = (
        "A/Cat.PNG",
        "A/cat.txt",
        "A/dog.png",
        "b/cat.txt",
        "a/CAFE\u0301.png",
        "a/caf\xe9.TXT",
    )
    selection = select_files(sizes(*files), CATS)
    assert set(selection.sidecars) == {"A/cat.txt", "a/caf\xe9.TXT"}
    assert selection.num_left_out == 1


def test_more_images_than_are_imported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfumato_datasets.hub_selection.MAX_IMAGES", 3)
    files = sizes("a.png", "b.png", "c.png", "d.png")
    assert len(select_files(files, HubRequest(id="org/cats", max_samples=3)).images) == 3
    with pytest.raises(HubTooLargeError, match=r"4 images, .* at most 3 at once"):
        select_files(files, CATS)
    with pytest.raises(HubTooLargeError, match="more than 3 files have names"):
        select_files(sizes("a.png", *(f"../{name}.png" for name in "abcd")), CATS)


def test_the_larger_of_images_and_parquet_is_the_dataset() -> None:
    preview = sizes("preview.png", size_bytes=10)
    parquet = sizes("data/train-00000-of-00001-0123456789abcdef.parquet", size_bytes=11)
    assert select_files({**preview, **parquet}, CATS).parquet == tuple(parquet)
    assert not select_files({**preview, **parquet}, CATS).images
    assert select_files({**preview, **parquet}, CATS).num_left_out == 1
    annotations = sizes("annotations.parquet", size_bytes=9)
    assert select_files({**preview, **annotations}, CATS).images == ("preview.png",)


@pytest.mark.parametrize("paths", [["a.csv", "README.md", "a.txt"], [".cache/a.png"]])
def test_nothing_that_can_be_read(paths: list[str]) -> None:
    with pytest.raises(HubUnsupportedError, match="neither images nor Parquet"):
        select_files(sizes(*paths), CATS)


def test_nothing_at_all() -> None:
    with pytest.raises(HubNotFoundError, match="no file lies in a folder a"):
        select_files({}, HubRequest(id="org/cats", folder="a"))
    with pytest.raises(HubNotFoundError, match="no file lies there"):
        select_files({}, CATS)


def test_paths_that_lead_anywhere_but_down() -> None:
    unsafe = ("../a.png", "/etc/b.png", "C:/c.png", "a//d.png", "a/../metadata.csv", "a\\e.png")
    unsafe = (*unsafe, "\ud800.png", "a/" * 600 + "g.png")
    selection = select_files(sizes("f.png", *unsafe), CATS)
    assert selection.images == ("f.png",)
    assert selection.metadata == ()
    assert selection.unsafe == tuple(sorted(unsafe))
