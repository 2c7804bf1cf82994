import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from sfumato_diffusion.checkpoint import TrainingState, find_latest, save_checkpoint

RUN_PLAN = Path(__file__).with_name("run_plan.py")


def _process(studio: Any, plan: Any) -> subprocess.CompletedProcess[str]:
    plan_file = plan.work_directory.with_suffix(".json")
    plan_file.write_text(json.dumps(plan.to_json()))
    command = [sys.executable, str(RUN_PLAN), str(plan_file), str(studio.directory / "blobs")]
    return subprocess.run(command, capture_output=True, text=True)


def _run_until_killed(studio: Any, plan: Any, reporter_of: Any, place: str, count: int) -> None:
    """Run in a child that is killed when it passes `place` for the n-th time."""
    child = os.fork()
    if child == 0:
        left = [count]

        def die(name: str) -> None:
            left[0] -= name == place
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        studio.run(plan, reporter_of(failpoint=die))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_killed_within_a_step_and_resumed_in_a_fresh_process(
    each_studio: Any, reporter_of: Any
) -> None:
    """The resumed process finds the cache warm and opens neither encoders nor VAE."""
    expected = each_studio.straight()
    killed = each_studio.plan("killed")
    _run_until_killed(each_studio, killed, reporter_of, "train_adapter:micro_step", 7)
    assert find_latest(killed.work_directory / "checkpoints").state.record.step == 2
    resumed = _process(each_studio, killed)
    assert resumed.returncode == 0, resumed.stderr
    assert each_studio.bytes_of(killed) == expected
    opened = {name.split("/")[0] for name in resumed.stdout.split()}
    assert "transformer" in opened
    assert not any(name.startswith(("vae", "text_encoder", "tokenizer")) for name in opened)


@pytest.mark.parametrize(
    ("place", "count"),
    [
        ("cache_conditioning:item", 3),
        ("train_adapter:micro_step", 1),
        ("train_adapter:micro_step", 6),
        ("train_adapter:step", 5),
        ("adapter.safetensors:written", 2),
        ("manifest.json:synced", 2),
        ("checkpoint:before_rename", 1),
        ("checkpoint:renamed", 2),
        ("checkpoint:done", 3),
        ("adapter.safetensors:synced", 4),
    ],
)
def test_killed_anywhere_ends_with_the_same_bytes(
    place: str, count: int, studio: Any, reporter_of: Any
) -> None:
    own_cache = {"cache_directory": studio.directory / "cache"}
    killed = studio.plan("killed", plan_changes=own_cache if place.startswith("cache") else None)
    _run_until_killed(studio, killed, reporter_of, place, count)
    assert studio.run(killed).result == "succeeded"
    assert studio.bytes_of(killed) == studio.straight()


def _half_run(studio: Any, reporter_of: Any) -> Any:
    halved = studio.plan("halved")
    studio.run(halved, reporter_of(command="drain", at_step=3))
    return halved


def _without(part: str) -> Any:
    def change(state: TrainingState) -> TrainingState:
        fresh = torch.Generator().manual_seed(123).get_state()
        if part == "optimiser":
            zeros = {name: torch.zeros_like(value) for name, value in state.optimiser.items()}
            return dataclasses.replace(state, optimiser=zeros)
        if part == "sampler":
            record = dataclasses.replace(
                state.record, progress={**state.record.progress, "position": 0}
            )
            return dataclasses.replace(state, record=record)
        if part == "ema":
            return dataclasses.replace(state, ema=state.adapter)
        return dataclasses.replace(state, random={**state.random, part: fresh})

    return change


@pytest.mark.parametrize(
    "part",
    ["optimiser", "sampler", "ema", "generator.loop", "generator.variant", "generator.noise",
     "generator.dropout", "torch.cpu"],
)  # fmt: skip
def test_losing_any_part_of_the_state_shows(part: str, studio: Any, reporter_of: Any) -> None:
    halved = _half_run(studio, reporter_of)
    directory = halved.work_directory / "checkpoints"
    state = find_latest(directory).state
    save_checkpoint(directory, _without(part)(state))
    assert studio.run(halved).result == "succeeded"
    assert studio.bytes_of(halved) != studio.straight()


def test_without_a_usable_checkpoint_the_run_starts_over_and_says_so(
    studio: Any, reporter_of: Any
) -> None:
    halved = _half_run(studio, reporter_of)
    for manifest in (halved.work_directory / "checkpoints").glob("*/manifest.json"):
        manifest.unlink()
    reporter = reporter_of()
    assert studio.run(halved, reporter).result == "succeeded"
    assert [event.code for event in reporter.of("warning")] == ["CHECKPOINTS_DAMAGED"]
    assert reporter.of("progress")[0].step == 1
    assert studio.bytes_of(halved) == studio.straight()


def test_a_damaged_checkpoint_is_walked_past(studio: Any, reporter_of: Any) -> None:
    halved = _half_run(studio, reporter_of)
    newest = halved.work_directory / "checkpoints" / "checkpoint-3" / "optimizer.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    reporter = reporter_of()
    assert studio.run(halved, reporter).result == "succeeded"
    resumed = reporter.of("resumed")[0]
    assert (resumed.step, resumed.skipped_damaged) == (2, ("checkpoint-3",))
    assert studio.bytes_of(halved) == studio.straight()


@pytest.mark.parametrize(
    ("changes", "field"),
    [({"rank": 8, "alpha": 8.0}, "resolution rank"), ({"seed": 1}, "seed"),
     ({"batch_size": 2}, "batch_size"), ({"flow_shift": 2.0}, "flow_shift")],
)  # fmt: skip
def test_another_identity_is_refused_by_name(
    changes: dict[str, Any], field: str, studio: Any, reporter_of: Any
) -> None:
    studio.run(studio.plan("first", train_steps=2))
    bundle = studio.directory / "first" / "checkpoints" / "checkpoint-2"
    reporter = reporter_of()
    other = studio.plan("second", plan_changes={"resume_checkpoint": bundle}, **changes)
    assert studio.run(other, reporter).result == "failed"
    failed = reporter.of("failed")[0]
    assert failed.code == "CHECKPOINT_IDENTITY"
    assert failed.message.split()[-1] in field.split()


def test_resuming_another_run_continues_its_counters(studio: Any, reporter_of: Any) -> None:
    studio.run(studio.plan("first", train_steps=2, ema_decay=0.0))
    bundle = studio.directory / "first" / "checkpoints" / "checkpoint-2"
    from_bundle = {"resume_checkpoint": bundle, "run": "second"}
    reporter = reporter_of()
    plan = studio.plan("second", train_steps=4, learning_rate=1e-3, plan_changes=from_bundle)
    assert studio.run(plan, reporter).result == "succeeded"
    assert [event.step for event in reporter.of("progress")] == [3, 4]
    assert not reporter.of("resumed")[0].bitwise
    assert [event.code for event in reporter.of("warning")] == ["EMA_SEEDED_FROM_WEIGHTS"]
    assert bundle.is_dir()

    at_target = reporter_of()
    studio.run(studio.plan("third", train_steps=2, plan_changes=from_bundle), at_target)
    assert at_target.of("failed")[0].code == "CHECKPOINT_AT_TARGET"

    gone = reporter_of()
    missing = {"resume_checkpoint": bundle.with_name("checkpoint-1")}
    studio.run(studio.plan("fourth", plan_changes=missing), gone)
    assert gone.of("failed")[0].code == "CHECKPOINT_MISSING"


def test_a_run_killed_between_its_last_step_and_publication_publishes(
    studio: Any, reporter_of: Any
) -> None:
    plan = studio.plan("late")
    studio.run(plan)
    expected = studio.bytes_of(plan)
    shutil.rmtree(plan.work_directory / "published")
    reporter = reporter_of()
    assert studio.run(plan, reporter).result == "succeeded"
    assert not reporter.of("progress")
    assert studio.bytes_of(plan) == expected
