from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hub_server import hub_server
from sfumato_datasets.hub import open_hub_dataset
from sfumato_datasets.hub_request import (
    DEFAULT_ENDPOINT,
    HubBusyError,
    HubError,
    HubNotFoundError,
    HubRequest,
    HubUnreachableError,
    HubUnsupportedError,
)
from sfumato_datasets.hub_settings import HubSettings
from sfumato_datasets.report import Report
from sfumato_datasets.sources import FileUnreadableError, SourceFiles

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


@contextmanager
def opening(
    cache: Path, *, endpoint: str | None = None, **asked: object
) -> Iterator[tuple[SourceFiles, Report]]:
    """What the cache gives, without an endpoint it alone."""
    report = Report()
    settings = HubSettings(
        endpoint=endpoint or DEFAULT_ENDPOINT,
        hosts=(),
        cache=cache,
        offline=endpoint is None,
        max_bytes=1 << 30,
        timeout_seconds=60,
    )
    request = HubRequest(**{"id": "org/cats", **asked})
    staging = cache.parent / "staging" / "import-1"
    with open_hub_dataset(request, settings=settings, staging=staging, report=report) as files:
        yield files, report


def names(cache: Path, **asked: object) -> list[str]:
    with opening(cache, **asked) as (files, _):
        return sorted(entry.name for entry in files.entries())


async def test_a_folder_of_the_cache_at_its_commit(cache: Path) -> None:
    with opening(cache) as (files, report):
        async with report.taking() as events:
            assert [event.kind for event in events] == ["revision_pinned", "note"]
            assert events[0].data == {"revision": COMMIT}
            assert events[1].data["reason"] == "HUB_CACHE_USED"
        assert files.read("a.png", 100) == b"first"
        assert files.read("a.txt", 100) == b"a cat"
    assert names(cache) == ["a.png", "a.txt", "b.jpg", "metadata.jsonl"]
    assert names(cache, revision=COMMIT, folder="data") == names(cache)


def test_no_more_samples_than_asked_for(cache: Path) -> None:
    assert names(cache, max_samples=1) == ["a.png", "a.txt", "metadata.jsonl"]


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"id": "org/dogs"}, HubUnreachableError),
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
    (snapshot / "train.csv").write_bytes(b"a,b")
    with pytest.raises(HubUnsupportedError, match="neither images nor Parquet"):
        names(cache, revision=OTHER)


def test_a_link_out_of_the_cache_is_not_read(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    link = cache / "datasets--org--cats" / "snapshots" / COMMIT / "data" / "c.png"
    link.symlink_to(tmp_path / "secret")
    with opening(cache) as (files, _), pytest.raises(FileUnreadableError):
        files.read("c.png", 100)


@pytest.mark.parametrize(
    ("status", "cached", "kind"),
    [
        (503, {"revision": "dev"}, HubUnreachableError),
        (503, {"id": "org/dogs"}, HubUnreachableError),
        (429, {}, HubBusyError),
        (404, {}, HubNotFoundError),
    ],
)
def test_where_the_hub_gives_nothing_and_the_cache_does_not_stand_in(
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    cached: dict[str, str],
    kind: type[HubError],
) -> None:
    """What is reported is the Hub's end, not that of the cache."""
    monkeypatch.setattr("sfumato_datasets.hub_listing.FIRST_PAUSE_SECONDS", 0.001)
    with hub_server() as hub:
        hub.fault("/", *[lambda handler: handler.give(status)] * 20)
        with pytest.raises(HubError) as refusal, opening(cache, endpoint=hub.url, **cached):
            raise AssertionError
    assert type(refusal.value) is kind


def test_names_that_lead_elsewhere_are_asked_of_nobody(cache: Path) -> None:
    with hub_server() as hub:
        for asked in ({"id": "org/../cats"}, {"revision": "../main"}, {"folder": "a/../../b"}):
            with pytest.raises(HubNotFoundError), opening(cache, endpoint=hub.url, **asked):
                raise AssertionError
        assert not hub.requests
