"""A change of the protos that breaks callers is found, without a history of git and without a network."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BREACHES = {
    "field removed": ("blobs/v1/blobs.proto", "  int64 size_bytes = 2;\n", ""),
    "field renumbered": ("datasets/v1/versions.proto", "num_samples = 4;", "num_samples = 40;"),
    "field renamed": ("datasets/v1/versions.proto", "num_captioned = 6;", "num_with_caption = 6;"),
    "type changed": ("datasets/v1/imports.proto", "int64 num_files = 2;", "string num_files = 2;"),
    "method removed": (
        "datasets/v1/datasets.proto",
        "rpc UnpinVersion(UnpinVersionRequest) returns (UnpinVersionResponse) {",
        "rpc DropPin(UnpinVersionRequest) returns (UnpinVersionResponse) {",
    ),
    "enum value renamed": ("datasets/v1/imports.proto", "IMPORT_MODE_ADD", "IMPORT_MODE_MORE"),
    "message renamed": ("job/v1/job.proto", "message Heartbeat {", "message Pulse {"),
}


@pytest.fixture
def protos(tmp_path: Path) -> Path:
    """A copy of the protos and their baseline, outside any repository."""
    return shutil.copytree(
        ROOT / "protos", tmp_path / "protos", ignore=shutil.ignore_patterns("gen")
    )


def baseline(protos: Path, *options: str) -> tuple[int, str]:
    """Exit code and words of the tool."""
    ended = subprocess.run(
        [sys.executable, ROOT / "tools/proto_baseline.py", *options, protos],
        env={**os.environ, "BUF_CACHE_DIR": str(protos.parent / "cache")},
        cwd=protos.parent,
        capture_output=True,
        text=True,
    )
    return ended.returncode, ended.stdout + ended.stderr


def edit(protos: Path, name: str, before: str, after: str) -> None:
    path = protos / "sfumato" / name
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


def test_the_repository_keeps_its_baseline(protos: Path) -> None:
    assert baseline(protos) == (0, "")


@pytest.mark.parametrize("breach", BREACHES)
def test_a_breaking_change_is_found_and_not_agreed_to(protos: Path, breach: str) -> None:
    agreed = (protos / "baseline.binpb").read_bytes()
    name, before, after = BREACHES[breach]
    edit(protos, name, before, after)
    if breach == "message renamed":
        edit(protos, "datasets/v1/imports.proto", "v1.Heartbeat", "v1.Pulse")
        edit(protos, "trainer/v1/trainer.proto", "v1.Heartbeat", "v1.Pulse")
        edit(protos, "generator/v1/generator.proto", "v1.Heartbeat", "v1.Pulse")
    for options in ((), ("--update",)):
        code, words = baseline(protos, *options)
        assert code == 100
        assert name in words
    assert (protos / "baseline.binpb").read_bytes() == agreed


def test_an_addition_is_kept_from_then_on(protos: Path) -> None:
    neighbour, field = "  int64 num_samples = 4;\n", "  string note = 900;\n"
    edit(protos, "datasets/v1/versions.proto", neighbour, neighbour + field)
    code, words = baseline(protos)
    assert code == 1
    assert "run `make protos`" in words
    assert baseline(protos, "--update") == (0, "")
    assert baseline(protos) == (0, "")
    edit(protos, "datasets/v1/versions.proto", field, "")
    assert baseline(protos)[0] == 100


def test_comments_are_free(protos: Path) -> None:
    edit(protos, "datasets/v1/versions.proto", "// From 1.", "// Counted from 1.")
    assert baseline(protos) == (0, "")


def test_a_lost_baseline_is_told(protos: Path) -> None:
    (protos / "baseline.binpb").unlink()
    code, words = baseline(protos)
    assert code == 1
    assert "is missing" in words
