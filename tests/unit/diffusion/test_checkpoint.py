import dataclasses
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sfumato_diffusion.checkpoint import (
    CheckpointRecord,
    DamagedCheckpointError,
    TrainingState,
    find_latest,
    first_difference,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)


def _state(step: int, *, run: str = "run") -> TrainingState:
    return TrainingState(
        record=CheckpointRecord(
            run=run,
            step=step,
            fence=3,
            identity={"family": "f"},
            resolved_config={"rank": 4},
            build={"torch": "2"},
            progress={"loss_sum": 0.1 + 0.2, "epoch": 1},
        ),
        adapter={"a": torch.full((2, 2), float(step))},
        ema={"a": torch.zeros(2, 2)} if step % 2 else None,
        optimiser={"exp_avg.a": torch.ones(2, 2), "step.a": torch.tensor(float(step))},
        optimiser_record={"optimiser": "adamw", "parameters": ["a"]},
        scheduler_record={"step": step},
        random={"generator.noise": torch.zeros(5, dtype=torch.uint8)},
        random_record={"python": {"version": 3}},
    )


def _same(left: TrainingState, right: TrainingState) -> bool:
    return left.record == right.record and all(
        torch.equal(getattr(left, part)[name], tensor)
        for part in ("adapter", "optimiser", "random")
        for name, tensor in getattr(right, part).items()
    )


def test_round_trip(tmp_path: Path) -> None:
    for step in (1, 2):
        saved = save_checkpoint(tmp_path, _state(step))
        loaded = load_checkpoint(saved.path)
        assert _same(loaded, _state(step))
        assert (loaded.ema is None) is (step == 2)
        assert loaded.random_record == _state(step).random_record
        assert saved.size_bytes == sum(p.stat().st_size for p in saved.path.iterdir())


def test_no_pickle(tmp_path: Path) -> None:
    saved = save_checkpoint(tmp_path, _state(1))
    assert {path.suffix for path in saved.path.iterdir()} == {".json", ".safetensors"}


def test_latest_is_by_number(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        save_checkpoint(tmp_path, _state(step))
    found = find_latest(tmp_path)
    assert found.path == tmp_path / "checkpoint-100"
    assert find_latest(tmp_path, at_most=99).path == tmp_path / "checkpoint-20"
    assert find_latest(tmp_path / "none").state is None


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", [_truncate, _flip, Path.unlink])
@pytest.mark.parametrize(
    "name",
    ["adapter.safetensors", "optimizer.safetensors", "optimizer.json", "scheduler.json",
     "rng.safetensors", "ema.safetensors", "manifest.json"],
)  # fmt: skip
def test_damaged_bundles_are_walked_past_and_named(
    name: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    for step in (2, 11):
        save_checkpoint(tmp_path, _state(step))
    damage(tmp_path / "checkpoint-11" / name)
    if (name, damage) == ("manifest.json", _flip):
        # A flipped bit inside a text value is caught where it matters: by comparison.
        (tmp_path / "checkpoint-11" / name).write_bytes(b"{}")
    found = find_latest(tmp_path)
    assert found.skipped_damaged == ("checkpoint-11",)
    assert found.state is not None
    assert _same(found.state, _state(2))
    with pytest.raises(DamagedCheckpointError):
        load_checkpoint(tmp_path / "checkpoint-11")


def test_retention_keeps_the_newest_and_other_runs(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, _state(1, run="other"))
    for step in (2, 10, 9):
        save_checkpoint(tmp_path, _state(step))
    prune_checkpoints(tmp_path, run="run", keep_last=2)
    assert {path.name for path in tmp_path.iterdir()} == {
        "checkpoint-1",
        "checkpoint-9",
        "checkpoint-10",
    }


def test_killed_at_every_point_of_a_write(tmp_path: Path) -> None:
    places: list[str] = []
    save_checkpoint(tmp_path / "count", _state(20), failpoint=places.append)
    assert len(places) > 20
    before = tmp_path / "before"
    save_checkpoint(before, _state(10))
    save_checkpoint(before, dataclasses.replace(_state(20), adapter={"a": torch.zeros(1)}))
    for deadly in range(len(places)):
        directory = tmp_path / str(deadly)
        shutil.copytree(before, directory)
        _die_at(deadly, lambda fail, d=directory: save_checkpoint(d, _state(20), failpoint=fail))
        found = find_latest(directory)
        assert found.state is not None
        assert found.state.record.step in (10, 20), places[deadly]
        assert not found.skipped_damaged
        save_checkpoint(directory, _state(30))
        assert {path.name for path in directory.iterdir()} <= {
            "checkpoint-10",
            "checkpoint-20",
            "checkpoint-30",
        }


def _die_at(deadly: int, write: Callable[[Callable[[str], None]], object]) -> None:
    """Run `write` in a child that ends without any clean-up at its n-th failpoint."""
    child = os.fork()
    if child == 0:
        passed = iter(range(deadly))
        write(lambda _: os._exit(9) if next(passed, None) is None else None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, _state(10))

    def full(name: str) -> None:
        if name == "optimizer.json:written":
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, _state(20), failpoint=full)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-10"]


def test_first_difference_in_the_wanted_order() -> None:
    saved = {"b": 1, "a": 1}
    assert first_difference(saved, {"a": 1, "b": 1}) is None
    assert first_difference(saved, {"a": 2, "b": 2}) == "a"
    assert first_difference(saved, {"a": 1, "b": 1, "c": 0}) == "c"
    assert first_difference({**saved, "d": 1}, {"a": 1, "b": 1}) == "d"
