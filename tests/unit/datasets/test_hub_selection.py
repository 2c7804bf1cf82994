import pytest

from sfumato_datasets.hub_request import HubNotFoundError, HubRequest, HubUnsupportedError
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
    assert selection.num_left_out == 1
    assert not selection.parquet


def test_max_samples_takes_the_first_images_with_their_captions() -> None:
    files = sizes("b/metadata.csv", "b/b.png", "b/b.txt", "a/a.png", "a/metadata.csv")
    selection = select_files(files, HubRequest(id="org/cats", max_samples=1))
    assert (selection.images, selection.sidecars) == (("a/a.png",), ())
    assert selection.metadata == ("a/metadata.csv",)


def test_the_larger_of_images_and_parquet_is_the_dataset() -> None:
    preview = sizes("preview.png", size_bytes=10)
    parquet = sizes("data/train-00000-of-00001-0123456789abcdef.parquet", size_bytes=11)
    assert select_files({**preview, **parquet}, CATS).parquet == tuple(parquet)
    assert not select_files({**preview, **parquet}, CATS).images
    assert select_files({**preview, **parquet}, CATS).num_left_out == 1
    annotations = sizes("annotations.parquet", size_bytes=9)
    assert select_files({**preview, **annotations}, CATS).images == ("preview.png",)


@pytest.mark.parametrize(
    ("paths", "split", "expected"),
    [
        (["data/train-0.parquet", "data/test-0.parquet"], "train", [0]),
        (["data/train-0.parquet", "data/test-0.parquet"], "test", [1]),
        (["train/0000.parquet", "validation/0000.parquet"], "validation", [1]),
        (["b/0001.parquet", "b/0000.parquet"], "train", [1, 0]),
        (["pictures.parquet", "test.parquet"], "train", [0]),
        (["my_train_set.parquet", "trainable.parquet"], "train", [0]),
        (["default/partial-train/0000.parquet"], "train", [0]),
        (["train-a.parquet", "train-b.parquet"], "train-a", [0]),
        (["a.b.parquet", "aXb.parquet"], "a.b", [0]),
    ],
)
def test_the_parquet_of_a_split(paths: list[str], split: str, expected: list[int]) -> None:
    selection = select_files(sizes(*paths), HubRequest(id="org/cats", split=split))
    assert selection.parquet == tuple(paths[index] for index in expected)


@pytest.mark.parametrize(
    ("paths", "split"),
    [
        (["train-0.parquet"], "test"),
        (["test-0.parquet", "dev/0.parquet"], "train"),
        (["a.csv", "README.md", "a.txt"], "train"),
        ([".cache/a.png"], "train"),
    ],
)
def test_nothing_that_can_be_read(paths: list[str], split: str) -> None:
    with pytest.raises(HubUnsupportedError, match="lie"):
        select_files(sizes(*paths), HubRequest(id="org/cats", split=split))


def test_nothing_at_all() -> None:
    with pytest.raises(HubNotFoundError, match="no file lies in a folder 'a'"):
        select_files({}, HubRequest(id="org/cats", folder="a"))
    with pytest.raises(HubNotFoundError, match="no file lies there"):
        select_files({}, CATS)


def test_paths_that_lead_anywhere_but_down() -> None:
    unsafe = ("../a.png", "/etc/b.png", "C:/c.png", "a//d.png", "a/../metadata.csv", "a\\e.png")
    selection = select_files(sizes("f.png", *unsafe), CATS)
    assert selection.images == ("f.png",)
    assert selection.metadata == ()
    assert selection.unsafe == tuple(sorted(unsafe))
