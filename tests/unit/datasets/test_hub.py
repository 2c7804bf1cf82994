from pathlib import Path

import pytest

from sfumato_datasets.hub import (
    HubError,
    HubNotFoundError,
    HubRequest,
    HubUnsupportedError,
    hub_cache,
    open_hub_dataset,
)
from sfumato_datasets.sources import FileUnreadableError

COMMIT, OTHER = "a" * 40, "b" * 40


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Laid out as the Hub's library does: links from snapshots to blobs, refs with commits."""
    repository = tmp_path / "hub" / "datasets--org--cats"
    files = {
        "README.md": b"about",
        "data/a.png": b"first",
        "data/a.txt": b"a cat",
        "data/b.jpg": b"second",
        "data/metadata.jsonl": b"{}",
    }
    for number, (name, content) in enumerate(files.items()):
        blob = repository / "blobs" / str(number)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link = repository / "snapshots" / COMMIT / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    (repository / "snapshots" / OTHER).mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    return tmp_path / "hub"


def names(cache: Path, **asked: object) -> list[str]:
    request = HubRequest(**{"id": "org/cats", **asked})
    with open_hub_dataset(request, cache=cache, on_revision=lambda commit: None) as files:
        return sorted(entry.name for entry in files.entries())


def test_a_folder_of_the_cache_at_its_commit(cache: Path) -> None:
    commits: list[str] = []
    request = HubRequest(id="org/cats")
    with open_hub_dataset(request, cache=cache, on_revision=commits.append) as files:
        assert commits == [COMMIT]
        assert files.read("a.png", 100) == b"first"
        assert files.read("a.txt", 100) == b"a cat"
    assert names(cache) == ["a.png", "a.txt", "b.jpg", "metadata.jsonl"]
    assert names(cache, revision=COMMIT, folder="data") == names(cache)


def test_no_more_samples_than_asked_for(cache: Path) -> None:
    assert names(cache, max_samples=1) == ["a.png", "a.txt", "metadata.jsonl"]


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"id": "org/dogs"}, HubError),
        ({"revision": "dev"}, HubNotFoundError),
        ({"revision": "../main"}, HubNotFoundError),
        ({"revision": "c" * 40}, HubNotFoundError),
        ({"folder": "none"}, HubNotFoundError),
        ({"folder": "/etc"}, HubNotFoundError),
        ({"folder": "../../.."}, HubNotFoundError),
        ({"revision": OTHER}, HubNotFoundError),
    ],
)
def test_what_the_cache_does_not_hold(
    cache: Path, asked: dict[str, object], kind: type[HubError]
) -> None:
    with pytest.raises(HubError) as refusal:
        names(cache, **asked)
    assert type(refusal.value) is kind
    assert str(refusal.value).startswith(str(asked.get("id", "org/cats")))


def test_a_dataset_without_images(cache: Path) -> None:
    snapshot = cache / "datasets--org--cats" / "snapshots" / OTHER
    (snapshot / "train.parquet").write_bytes(b"PAR1")
    with pytest.raises(HubUnsupportedError, match="Parquet is not read"):
        names(cache, revision=OTHER)


def test_captions_of_several_folders_are_not_lost(cache: Path) -> None:
    snapshot = cache / "datasets--org--cats" / "snapshots" / OTHER
    for split in ("test", "train"):
        (snapshot / split).mkdir()
        (snapshot / split / f"{split}.png").write_bytes(b"picture")
        (snapshot / split / "metadata.jsonl").write_text("{}")
    with pytest.raises(HubUnsupportedError, match="name a folder"):
        names(cache, revision=OTHER)
    found = names(cache, revision=OTHER, folder="train")
    assert found == ["metadata.jsonl", "train.png"]


def test_a_link_out_of_the_cache_is_not_read(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    link = cache / "datasets--org--cats" / "snapshots" / COMMIT / "data" / "c.png"
    link.symlink_to(tmp_path / "secret")
    request = HubRequest(id="org/cats")
    with (
        open_hub_dataset(request, cache=cache, on_revision=lambda commit: None) as files,
        pytest.raises(FileUnreadableError),
    ):
        files.read("c.png", 100)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": "/b"}, "/a"),
        ({"HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c"}, "/b"),
        ({"HF_HOME": "/c", "XDG_CACHE_HOME": "/d"}, "/c/hub"),
        ({"XDG_CACHE_HOME": "/d"}, "/d/huggingface/hub"),
        ({"HF_HUB_CACHE": "~/e"}, str(Path.home() / "e")),
    ],
)
def test_where_the_cache_is(environment: dict[str, str], expected: str) -> None:
    assert hub_cache(environment) == Path(expected)
