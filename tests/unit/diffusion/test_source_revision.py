import os
from pathlib import Path

import pytest

from sfumato_diffusion.source_revision import find_snapshot, hub_cache_roots, source_revision

SHA_A, SHA_B = "a" * 40, "b" * 40


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    folder = tmp_path / "models--org--name"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(f"{SHA_A}\n")
    for sha in (SHA_A, SHA_B):
        (folder / "snapshots" / sha).mkdir(parents=True)
    return tmp_path


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    model = tmp_path / "model"
    for name in ("model_index.json", "vae/w", "text_encoder_2/w", "tokenizer/t", "transformer/w"):
        path = model / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return model


def test_no_source() -> None:
    assert source_revision("", []) == "none"


def test_hub_revisions(hub: Path) -> None:
    assert source_revision("org/name", [hub]) == f"rev-{'a' * 16}"
    assert source_revision("org/name", [hub], revision=SHA_B) == f"rev-{'b' * 16}"
    assert source_revision("org/name", [hub], revision="c" * 40) == "unresolved"


def test_without_a_ref_a_single_snapshot_counts_and_two_do_not(hub: Path) -> None:
    (hub / "models--org--name" / "refs" / "main").unlink()
    assert source_revision("org/name", [hub]) == "unresolved"
    (hub / "models--org--name" / "snapshots" / SHA_B).rmdir()
    assert source_revision("org/name", [hub]) == f"rev-{'a' * 16}"


@pytest.mark.parametrize(
    "reference", ["org/other", "not a repository", "../up/../etc", "a\0b", "x"]
)
def test_anything_else_is_unresolved_and_never_raises(hub: Path, reference: str) -> None:
    assert source_revision(reference, [hub]) == "unresolved"


@pytest.mark.parametrize(
    ("changed", "counts"),
    [
        ("model_index.json", True),
        ("vae/w", True),
        ("text_encoder_2/w", True),
        ("tokenizer/t", True),
        ("transformer/w", False),
    ],
)
def test_what_of_a_directory_counts(directory: Path, changed: str, counts: bool) -> None:
    before = source_revision(str(directory), [])
    assert before.startswith("dir-")
    assert len(before) == len("dir-") + 16
    status = os.stat(directory / changed)
    os.utime(directory / changed, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert (source_revision(str(directory), []) != before) is counts


def test_components_narrow_a_directory(directory: Path) -> None:
    before = [source_revision(str(directory), [], components=[c]) for c in ("vae", "text_encoder")]
    (directory / "vae" / "w").write_text("other weights")
    after = [source_revision(str(directory), [], components=[c]) for c in ("vae", "text_encoder")]
    assert before[0] != after[0]
    assert before[1] == after[1]


def test_single_file(tmp_path: Path) -> None:
    path = tmp_path / "weights.gguf"
    path.write_bytes(b"one")
    before = source_revision(str(path), [])
    path.write_bytes(b"other")
    assert before.startswith("file-")
    assert source_revision(str(path), []) != before


def test_cache_roots_in_order_without_duplicates(tmp_path: Path) -> None:
    environment = {"HF_HUB_CACHE": "/two", "HUGGINGFACE_HUB_CACHE": str(tmp_path)}
    roots = hub_cache_roots(tmp_path, environment)
    assert roots[:2] == (tmp_path, Path("/two"))
    assert len(roots) == 3
    assert len(hub_cache_roots(None, {})) == 1


def test_first_root_wins(hub: Path, tmp_path: Path) -> None:
    assert find_snapshot("org/name", [tmp_path / "none", hub]) is not None
