import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sfumato_diffusion.families.registry import build_tiny, list_families

FAMILIES = [info.name for info in list_families()]


def _digests(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_same_seed_same_bytes_in_another_process(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    script = (
        "import sys, pathlib; from sfumato_diffusion.families.registry import build_tiny; "
        "[build_tiny(name, pathlib.Path(sys.argv[1]) / name) for name in sys.argv[2:]]"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path), *FAMILIES], check=True)
    for family in FAMILIES:
        assert _digests(tmp_path / family) == _digests(tiny_model(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_small_and_seeded(family: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    directory = tiny_model(family)
    assert sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()) < 2e6
    build_tiny(family, tmp_path, seed=1)
    other = _digests(tmp_path)
    weights = [name for name in other if name.endswith(".safetensors")]
    assert len(weights) >= 3
    assert all(
        other[name] != digest for name, digest in _digests(directory).items() if name in weights
    )


def test_nothing_that_is_there_is_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    command = [sys.executable, "-m", "sfumato_diffusion.tiny", "flux.1", str(folder)]
    made = subprocess.run(command, capture_output=True, text=True)
    assert (made.returncode, made.stderr) == (0, "")
    assert made.stdout == f"a tiny flux.1 is in {folder}\n"
    before = _digests(folder)
    again = subprocess.run([*command, "--seed", "1"], capture_output=True, text=True)
    assert (again.returncode, again.stderr) == (2, f"{folder}: is not empty\n")
    assert _digests(folder) == before


@pytest.mark.parametrize("seed", ["-1", str(2**53)])
def test_a_seed_that_protos_cannot_hold_is_refused(seed: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sfumato_diffusion.tiny", "z-image", str(tmp_path)]
    ended = subprocess.run([*command, f"--seed={seed}"], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "--seed must be at least 0, at most 9007199254740991\n"


def test_a_place_that_cannot_be_written_is_told_in_one_line() -> None:
    command = [sys.executable, "-m", "sfumato_diffusion.tiny", "z-image", "/proc/x"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (2, "/proc/x: No such file or directory\n")
