import pytest

from sfumato_datasets.hub_request import HubUnsupportedError
from sfumato_datasets.hub_splits import files_of_split


@pytest.mark.parametrize(
    ("paths", "split", "expected"),
    [
        (["data/train-0.parquet", "data/test-0.parquet"], "train", [0]),
        (["data/train-0.parquet", "data/test-0.parquet"], "test", [1]),
        (["train/0000.parquet", "validation/0000.parquet"], "validation", [1]),
        (["b/0000.parquet", "b/0001.parquet"], "train", [0, 1]),
        (["pictures.parquet", "test.parquet"], "train", [0]),
        (["my_train_set.parquet", "trainable.parquet"], "train", [0]),
        (["default/partial-train/0000.parquet"], "train", [0]),
        (["train-a.parquet", "train-b.parquet"], "train-a", [0]),
        (["a.b.parquet", "aXb.parquet"], "a.b", [0]),
        (["data/Train-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"], "train", [0]),
        (
            [
                "data/train-00000-of-00002-0123456789abcdef.parquet",
                "data/train-00001-of-00002-fedcba9876543210.parquet",
                "data/train-extra-00000-of-00001.parquet",
                "data/pre-train-00000-of-00001.parquet",
            ],
            "train",
            [0, 1],
        ),
        (["data/pre-train-00000-of-00001.parquet", "data/all.parquet"], "pre-train", [0]),
        (
            ["train1.parquet", "train_2.parquet", "train.parquet", "train-3b.parquet"],
            "train",
            [0, 1, 2],
        ),
        (["test/train-0.parquet", "test/test-0.parquet"], "train", [0]),
        (["default/train/0000.parquet", "default/test/0000.parquet"], "train", [0]),
        (["a/0000.parquet", "b/0000.parquet", "b/val-00000-of-00001.parquet"], "train", [0, 1]),
        (["a/0000.parquet", "unrestrained/test-1.parquet"], "train", [0]),
    ],
)
def test_the_parquet_of_a_split(paths: list[str], split: str, expected: list[int]) -> None:
    assert files_of_split(paths, split) == [paths[index] for index in expected]


@pytest.mark.parametrize(
    ("paths", "split"),
    [
        (["train-0.parquet"], "test"),
        (["test-0.parquet", "dev/0.parquet"], "train"),
        (["data/train-00000-of-00001.parquet"], "tr.in"),
    ],
)
def test_there_is_none(paths: list[str], split: str) -> None:
    with pytest.raises(HubUnsupportedError, match=f"no Parquet of a split {split} lies there"):
        files_of_split(paths, split)


@pytest.mark.parametrize(
    ("paths", "folders"),
    [
        (["en/train-00000-of-00001.parquet", "de/train-00000-of-00001.parquet"], "en, de"),
        (["en/train/0000.parquet", "de/partial-train/0000.parquet"], "en, de"),
        (["train.parquet", "de/train.parquet"], r"\., de"),
    ],
)
def test_datasets_of_several_folders_are_not_mixed(paths: list[str], folders: str) -> None:
    with pytest.raises(HubUnsupportedError, match=f"have a split train, choose one: {folders}"):
        files_of_split(paths, "train")
    assert files_of_split([path for path in paths if path.startswith("de/")], "train") == [paths[1]]
