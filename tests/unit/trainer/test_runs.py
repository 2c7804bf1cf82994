"""Base models of runs, found without loading anything."""

from pathlib import Path

import pytest

from sfumato_chassis.errors import NotFound, Reason
from sfumato_trainer.run_request import BaseModel
from sfumato_trainer.runs import resolve_base

ABSENT = BaseModel(kind="hub", reference="Tongyi-MAI/Z-Image", revision="main", message={})


@pytest.fixture(autouse=True)
def empty_hub_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No snapshot of the Hub lies on this machine."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.delenv("HUGGINGFACE_HUB_CACHE", raising=False)


def test_a_repository_that_is_fetched_later() -> None:
    base = resolve_base(ABSENT, None, (), may_download=True)
    assert (base.folder, base.info.name) == (None, "z-image")


def test_a_repository_that_is_not_here_and_may_not_be_fetched() -> None:
    with pytest.raises(NotFound, match="Tongyi-MAI/Z-Image") as refusal:
        resolve_base(ABSENT, None, (), may_download=False)
    assert refusal.value.reason is Reason.RESOURCE_NOT_FOUND
