"""A base model's files: those that are here, and those that have to be fetched."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sfumato_diffusion.families.registry import family_info
from sfumato_diffusion.model_files import ModelNotFoundError, locate_model
from sfumato_diffusion.model_folder import ModelFolderError, UnsafeWeightsError

Z_IMAGE = family_info("z-image")
COMMIT = "d" * 40
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture
def snapshot(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """The whole of ``org/name`` under ``tmp_path``."""
    return Path(
        shutil.copytree(
            tiny_model("z-image"), tmp_path / "models--org--name" / "snapshots" / COMMIT
        )
    )


@pytest.fixture
def fetched(
    snapshot: Path, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Repositories that were asked of the Hub, which answers with the weights."""
    asked: list[str] = []

    def download(repository: str, **_: Any) -> str:
        asked.append(repository)
        shutil.copy(tiny_model("z-image") / WEIGHTS, snapshot / WEIGHTS)
        return str(snapshot)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    return asked


def locate(root: Path, *, allow_download: bool) -> Path:
    return locate_model("org/name", [root], info=Z_IMAGE, allow_download=allow_download)


def test_a_model_that_is_not_here_is_not_found(snapshot: Path, tmp_path: Path) -> None:
    assert locate_model(str(snapshot), [], info=Z_IMAGE) == snapshot
    assert locate(tmp_path, allow_download=False) == snapshot
    (snapshot / "model_index.json").unlink()
    with pytest.raises(ModelNotFoundError, match="org/name"):
        locate(tmp_path, allow_download=False)


def test_a_whole_snapshot_is_not_asked_for_again(
    snapshot: Path, fetched: list[str], tmp_path: Path
) -> None:
    assert locate(tmp_path, allow_download=True) == snapshot
    assert fetched == []


def test_an_interrupted_download_is_continued(
    snapshot: Path, fetched: list[str], tmp_path: Path
) -> None:
    (snapshot / WEIGHTS).unlink()
    assert locate(tmp_path, allow_download=False) == snapshot
    assert fetched == []
    assert locate(tmp_path, allow_download=True) == snapshot
    assert fetched == ["org/name"]
    assert (snapshot / WEIGHTS).is_file()


def test_a_download_mends_neither_pickles_nor_another_kind(
    snapshot: Path, fetched: list[str], tmp_path: Path
) -> None:
    index = snapshot / "model_index.json"
    whole = index.read_text()
    index.write_text(whole.replace("ZImageTransformer2DModel", "OtherModel"))
    with pytest.raises(ModelFolderError, match="transformer: is a OtherModel"):
        locate(tmp_path, allow_download=True)
    index.write_text(whole)
    (snapshot / WEIGHTS).rename(snapshot / "transformer" / "weights.bin")
    with pytest.raises(UnsafeWeightsError):
        locate(tmp_path, allow_download=True)
    assert fetched == []
