"""Base models of runs, found without loading anything."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sfumato_chassis.errors import FailedPrecondition, InvalidArgument, NotFound, Reason
from sfumato_trainer.run_request import BaseModel
from sfumato_trainer.runs import resolve_base, resolve_settings

ABSENT = BaseModel(kind="hub", reference="Tongyi-MAI/Z-Image", revision="main", message={})
COMMIT = "c" * 40


@pytest.fixture(autouse=True)
def empty_hub_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No snapshot of the Hub lies on this machine."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE", raising=False)


def test_variants_that_would_all_be_the_same_are_refused() -> None:
    info = resolve_base(ABSENT, None, (), may_download=True).info
    fixed = {"center_crop": True, "random_flip": False}
    resolved = resolve_settings(fixed, ABSENT, info, device="cpu")
    assert resolved.cache_variants == 1
    assert resolve_settings({"center_crop": True}, ABSENT, info, device="cpu").cache_variants == 4
    with pytest.raises(InvalidArgument) as refusal:
        resolve_settings({**fixed, "cache_variants": 2}, ABSENT, info, device="cpu")
    assert refusal.value.violations[0].path == "configuration.cache_variants"


def test_a_repository_that_is_fetched_later() -> None:
    base = resolve_base(ABSENT, None, (), may_download=True)
    assert (base.folder, base.info.name) == (None, "z-image")


def test_a_repository_that_is_not_here_and_may_not_be_fetched() -> None:
    with pytest.raises(NotFound, match="Tongyi-MAI/Z-Image") as refusal:
        resolve_base(ABSENT, None, (), may_download=False)
    assert refusal.value.reason is Reason.RESOURCE_NOT_FOUND


@pytest.fixture
def snapshot(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """All of a repository that ``ABSENT`` names, on this machine."""
    repository = tmp_path / "hub" / "models--Tongyi-MAI--Z-Image"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    return Path(shutil.copytree(tiny_model("z-image"), repository / "snapshots" / COMMIT))


def test_a_repository_that_is_here_is_looked_through_although_it_might_be_fetched(
    snapshot: Path,
) -> None:
    base = resolve_base(ABSENT, None, (), may_download=True)
    assert (base.folder, base.max_side) == (snapshot, 2048)


def test_what_an_interrupted_download_left_is_fetched_later(snapshot: Path) -> None:
    (snapshot / "transformer" / "diffusion_pytorch_model.safetensors").unlink()
    assert resolve_base(ABSENT, None, (), may_download=True).folder is None
    with pytest.raises(FailedPrecondition) as refusal:
        resolve_base(ABSENT, None, (), may_download=False)
    assert refusal.value.details == {"component": "transformer"}


@pytest.mark.parametrize("may_download", [True, False])
def test_a_repository_of_pickles_is_refused_although_it_might_be_fetched(
    snapshot: Path, may_download: bool
) -> None:
    weights = snapshot / "transformer" / "diffusion_pytorch_model.safetensors"
    weights.rename(weights.with_suffix(".bin"))
    with pytest.raises(FailedPrecondition) as refusal:
        resolve_base(ABSENT, None, (), may_download=may_download)
    assert refusal.value.reason is Reason.WEIGHTS_UNSAFE
    assert refusal.value.details == {"component": "transformer"}
