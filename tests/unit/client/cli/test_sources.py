"""How models and adapters are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from sfumato.job.v1 import sources_pb2
from sfumato_client.cli.sources import SourceError, model_source, split_weight

DIGEST = "sha256:" + "1" * 64


def test_hub_id() -> None:
    source = model_source("black-forest-labs/FLUX.1-dev", revision="main")
    assert source.hub == sources_pb2.HubModel(id="black-forest-labs/FLUX.1-dev", revision="main")


def test_hub_id_without_revision_leaves_it_to_the_server() -> None:
    assert not model_source("org/model").hub.HasField("revision")


def test_folder_that_is_here_is_sent_as_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert model_source("org/model").directory.path == str(tmp_path / "org" / "model")


@pytest.mark.parametrize("path", ["tiny", "/models/a/b", "a/b/c", "./tiny"])
def test_other_paths_are_left_to_the_server(path: str) -> None:
    assert model_source(path).directory.path == path


@pytest.mark.parametrize("model", ["/models/a.safetensors", "b.GGUF"])
def test_single_file_is_refused(model: str) -> None:
    with pytest.raises(SourceError, match="single file"):
        model_source(model)


def test_revision_of_a_path_is_refused() -> None:
    with pytest.raises(SourceError, match="Hub"):
        model_source("folder", revision="main")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run-1", ("run-1", None)),
        ("run-1:0.8", ("run-1", 0.8)),
        ("run-1:-2", ("run-1", -2.0)),
        ("org/lora@v1:1e-1", ("org/lora@v1", 0.1)),
        (DIGEST, (DIGEST, None)),
        (f"{DIGEST}:1", (DIGEST, 1.0)),
        ("a:b", ("a:b", None)),
        ("run-1:nan", ("run-1:nan", None)),
    ],
)
def test_weight(text: str, expected: tuple[str, float | None]) -> None:
    assert split_weight(text) == expected
