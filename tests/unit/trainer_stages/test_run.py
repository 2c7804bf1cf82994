import dataclasses
import errno
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from structlog.testing import capture_logs

from sfumato_diffusion.adapters import AdapterStack, load_adapter
from sfumato_diffusion.conditioning.cache import ConditioningCache
from sfumato_diffusion.conditioning.plan import latent_keys
from sfumato_diffusion.families.contract import TextToImage
from sfumato_diffusion.families.registry import load_family
from sfumato_trainer.settings import ModelSource
from sfumato_trainer.stages.cache_conditioning import conditioning_source, image_items

ENDS = {"succeeded", "failed", "cancelled"}


def test_same_seed_same_bytes_warm_or_cold(each_studio: Any, reporter_of: Any) -> None:
    own_cache = {"cache_directory": each_studio.directory / "cache"}
    cold = each_studio.plan("cold", plan_changes=own_cache)
    warm = each_studio.plan("warm", plan_changes=own_cache)
    cold_reporter, warm_reporter = reporter_of(), reporter_of()
    assert each_studio.run(cold, cold_reporter).result == "succeeded"
    state = torch.get_rng_state()
    assert each_studio.run(warm, warm_reporter).result == "succeeded"
    assert torch.equal(state, torch.get_rng_state())
    assert each_studio.bytes_of(cold) == each_studio.bytes_of(warm)
    assert cold_reporter.of("loaded")[0].encoders_loaded >= 2
    loaded = warm_reporter.of("loaded")[0]
    assert (loaded.encoders_loaded, loaded.latent_misses, loaded.text_misses) == (0, 0, 0)
    assert loaded.text_hits == 7
    assert loaded.latent_hits > 6
    progress = warm_reporter.of("progress")
    assert [event.step for event in progress] == [1, 2, 3, 4, 5, 6]
    assert progress[0].learning_rate == 0.0
    assert progress[1].learning_rate == pytest.approx(5e-3)
    assert progress[-1].average_loss == pytest.approx(sum(e.loss for e in progress) / 6)
    assert [event.step for event in warm_reporter.of("checkpoint_saved")] == [2, 4, 6]
    assert warm_reporter.events[-1].kind == "succeeded"
    assert not warm_reporter.events[-1].stopped_early


@pytest.mark.parametrize(
    "changes",
    [{"seed": 43}, {"flow_shift": 2.0}, {"weighting_scheme": "none"}, {"gradient_accumulation": 1},
     {"caption_dropout": 0.0}, {"adapter_dropout": 0.0}, {"max_gradient_norm": 0.1}, {"weight_decay": 0.5},
     {"warmup_steps": 1}, {"alpha": 8.0}, {"adam_epsilon": 1e-3}, {"adam_beta1": 0.5}, {"adam_beta2": 0.9},
     {"random_flip": False}, {"cache_variants": 3}],
)  # fmt: skip
def test_no_setting_does_nothing(changes: dict[str, Any], studio: Any) -> None:
    changed = studio.plan("changed", **({"train_steps": 3} | changes))
    studio.run(changed)
    plain = load(studio.straight(train_steps=3)[0]), load(studio.bytes_of(changed)[0])
    assert not all(torch.equal(plain[0][name], plain[1][name]) for name in plain[0])


def test_gradient_checkpointing_changes_nothing(studio: Any) -> None:
    plan = studio.plan("checkpointing", gradient_checkpointing=True, train_steps=3)
    studio.run(plan)
    left, right = load(studio.straight(train_steps=3)[0]), load(studio.bytes_of(plan)[0])
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_bf16_on_request_keeps_the_adapter_in_fp32(studio: Any) -> None:
    plan = studio.plan("half", compute_precision="bf16", train_steps=2)
    assert studio.run(plan).result == "succeeded"
    adapter = load_adapter(plan.work_directory / "published" / "adapter.safetensors")
    assert {tensor.dtype for tensor in adapter.tensors.values()} == {torch.float32}


def test_the_adapter_changes_the_picture(each_studio: Any) -> None:
    plan = each_studio.plan("trained")
    outcome = each_studio.run(plan)
    adapter = load_adapter(outcome.published.adapter.path)
    family = load_family(each_studio.family)
    pipeline = family.load_pipeline(each_studio.model, precision="fp32")
    request = TextToImage(prompt="a red apple", width=64, height=64, steps=2, seed=1)
    stack = AdapterStack(pipeline.transformer)
    pictures = []
    for adapters in ({}, {"a": (adapter, 1.0)}, {}):
        stack.switch(adapters)
        pictures.append(family.generate(pipeline, request).tobytes())
    assert pictures[0] == pictures[2]
    assert pictures[0] != pictures[1]
    lineage = {key: value for key, value in adapter.metadata.items() if key.startswith("sfumato.")}
    assert lineage["sfumato.dataset"] == "emoji"
    assert lineage["sfumato.base_revision"].startswith("dir-")
    assert lineage["sfumato.config_digest"] == plan.settings.digest()


def test_stop_publishes_and_says_so(studio: Any, reporter_of: Any) -> None:
    reporter = reporter_of(command="stop", at_step=3)
    plan = studio.plan("stopped")
    outcome = studio.run(plan, reporter)
    assert (outcome.result, outcome.step) == ("succeeded", 3)
    assert reporter.events[-1].stopped_early
    assert reporter.of("checkpoint_saved")[-1].step == 3
    assert outcome.published.adapter.path.is_file()


def test_cancel_keeps_the_checkpoint_and_publishes_nothing(studio: Any, reporter_of: Any) -> None:
    reporter = reporter_of(command="cancel", at_step=3)
    plan = studio.plan("cancelled")
    assert studio.run(plan, reporter).result == "cancelled"
    assert reporter.events[-1].kind == "cancelled"
    assert (plan.work_directory / "checkpoints" / "checkpoint-3").is_dir()
    assert not (plan.work_directory / "published").exists()


@pytest.mark.parametrize(("command", "result"), [("cancel", "cancelled"), ("drain", "drained")])
def test_ending_before_the_first_step(
    command: str, result: str, studio: Any, reporter_of: Any
) -> None:
    reporter = reporter_of(command=command)
    assert studio.run(studio.plan("early"), reporter).result == result
    assert not reporter.of("progress")
    assert bool(reporter.of("cancelled")) is (command == "cancel")


def test_drained_and_continued_equals_uninterrupted(studio: Any, reporter_of: Any) -> None:
    drained = studio.plan("drained")
    reporter = reporter_of(command="drain", at_step=3)
    assert studio.run(drained, reporter).result == "drained"
    assert not [event for event in reporter.events if event.kind in ENDS]
    again = reporter_of()
    next_attempt = dataclasses.replace(drained, attempt=2, fence=2)
    assert studio.run(next_attempt, again).result == "succeeded"
    assert again.of("resumed")[0].step == 3
    assert again.of("resumed")[0].bitwise
    assert [event.step for event in again.of("progress")] == [4, 5, 6]
    assert studio.straight() == studio.bytes_of(drained)


def test_a_lost_lease_leaves_no_trace(studio: Any, reporter_of: Any) -> None:
    plan = studio.plan("fenced")
    reporter = reporter_of(may_publish=lambda: False)
    assert studio.run(plan, reporter).result == "lease_lost"
    assert not [event for event in reporter.events if event.kind in ENDS]
    assert not plan.work_directory.exists()


def test_a_full_disk_is_reported_and_the_run_goes_on(studio: Any, reporter_of: Any) -> None:
    def full(name: str) -> None:
        if name == "optimizer.json:written":
            raise OSError(28, "No space left on device")

    reporter = reporter_of(failpoint=full)
    assert studio.run(studio.plan("full"), reporter).result == "succeeded"
    assert [event.step for event in reporter.of("checkpoint_failed")] == [2, 4, 6]
    assert reporter.of("checkpoint_failed")[0].message == "the server's disk is full"


def _missing(studio: Any) -> Any:
    studio.blob_path(studio.samples[1].image_digest).unlink()
    return studio.plan("bad")


def _damaged(studio: Any) -> Any:
    studio.blob_path(studio.samples[1].image_digest).write_bytes(b"other")
    return studio.plan("bad")


def _no_model(studio: Any) -> Any:
    plan = studio.plan("bad")
    base = dataclasses.replace(plan.settings.base_model, reference="org/absent")
    return dataclasses.replace(plan, settings=dataclasses.replace(plan.settings, base_model=base))


def _damaged_model(studio: Any) -> Any:
    model = studio.directory / "model"
    shutil.copytree(studio.model, model)
    weights = model / "transformer" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    base = ModelSource(reference=str(model))
    return studio.plan("bad", base_model=base)


def _with_few_positions(studio: Any) -> Any:
    model = shutil.copytree(studio.model, studio.directory / "model")
    file = model / "transformer" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"axes_lens": [1536, 4, 4]}))
    return studio.plan("bad", base_model=ModelSource(reference=str(model)), resolution=80)


def _without_a_tokenizer(studio: Any) -> Any:
    model = shutil.copytree(studio.model, studio.directory / "model")
    shutil.rmtree(model / "tokenizer")
    return studio.plan("bad", base_model=ModelSource(reference=str(model)))


@pytest.mark.parametrize(
    ("break_it", "code"),
    [
        (_damaged_model, "WEIGHTS_UNSAFE"),
        (_without_a_tokenizer, "MODEL_UNREADABLE"),
        (_with_few_positions, "RESOLUTION_TOO_LARGE"),
        (_missing, "SAMPLE_MISSING"),
        (_damaged, "SAMPLE_DAMAGED"),
        (_no_model, "MODEL_NOT_FOUND"),
        (lambda studio: studio.plan("bad", compute_precision="fp16"), "UNSUPPORTED_PRECISION"),
        (lambda studio: studio.plan("bad", resolution=72), "RESOLUTION_NOT_MULTIPLE"),
        (lambda studio: studio.plan("bad", target_modules=("to_x",)), "ADAPTER_REFUSED"),
        (lambda studio: studio.plan("bad", family="sdxl-classic"), "UNKNOWN_FAMILY"),
    ],
)
def test_known_failures_are_one_event(
    break_it: Any, code: str, studio: Any, reporter_of: Any
) -> None:
    reporter = reporter_of()
    assert studio.run(break_it(studio), reporter).result == "failed"
    assert [event.code for event in reporter.of("failed")] == [code]
    assert str(studio.directory) not in reporter.of("failed")[0].message
    if code.startswith("SAMPLE"):
        assert reporter.of("failed")[0].samples == (studio.samples[1].file_name,)


def test_a_failure_that_nobody_foresaw_is_left_to_the_worker(studio: Any, reporter_of: Any) -> None:
    (studio.directory / "cache").write_text("a file where a folder must be")
    plan = studio.plan("bad", plan_changes={"cache_directory": studio.directory / "cache"})
    reporter = reporter_of()
    with pytest.raises(OSError, match="cache"):
        studio.run(plan, reporter)
    assert not [event for event in reporter.events if event.kind in ENDS]


def test_an_adapter_that_finds_no_space_fails_the_run(studio: Any, reporter_of: Any) -> None:
    def full(name: str) -> None:
        if name == "adapter.safetensors:written":
            raise OSError(errno.ENOSPC, "No space left on device")

    reporter = reporter_of(failpoint=full)
    with capture_logs() as lines:
        assert studio.run(studio.plan("full"), reporter).result == "failed"
    failed = reporter.of("failed")[0]
    assert (failed.code, failed.message) == ("DISK_FULL", "the server's disk is full")
    (line,) = lines
    assert (line["event"], line["error_id"]) == ("the attempt failed", failed.error_id)


def test_a_target_that_the_model_lacks_is_found_before_anything_is_encoded(
    studio: Any, reporter_of: Any
) -> None:
    reporter = reporter_of()
    assert studio.run(studio.plan("bad", target_modules=("to_x",)), reporter).result == "failed"
    assert reporter.of("failed")[0].message == (
        "target_modules: to_x: no linear layer of the model has this name"
    )
    assert {event.stage for event in reporter.of("preparing")} <= {"fetch_samples"}


def _spoil_latents(studio: Any, plan: Any) -> None:
    """Make the cached latents of the first picture so large that their loss overflows."""
    source = conditioning_source(plan, load_family(studio.family), studio.model)
    paths = [studio.blob_path(sample.image_digest) for sample in plan.samples]
    cache = ConditioningCache(plan.cache_directory)
    for key in latent_keys(source, image_items(plan, paths)[0], (64, 64)):
        mean, std = cache.read(key)
        cache.write(key, (torch.full_like(mean, 1e30), std))


def test_a_loss_that_is_no_number_stops_the_run(studio: Any, reporter_of: Any) -> None:
    plan = studio.plan(
        "burst", batch_size=1, gradient_accumulation=1, save_steps=1,
        plan_changes={"cache_directory": studio.directory / "cache"},
    )  # fmt: skip
    assert studio.run(dataclasses.replace(plan, run="fills the cache")).result == "succeeded"
    shutil.rmtree(plan.work_directory)
    _spoil_latents(studio, plan)
    reporter = reporter_of()
    assert studio.run(plan, reporter).result == "failed"
    failed = reporter.of("failed")[0]
    assert failed.code == "LOSS_NOT_FINITE"
    assert failed.samples == (plan.samples[0].file_name,)
    assert failed.step == len(reporter.of("progress"))
    kept = {path.name for path in (plan.work_directory / "checkpoints").glob("*")}
    assert (f"checkpoint-{failed.step}" in kept) is (failed.step > 0)
    assert not (plan.work_directory / "published").exists()


def test_instance_prompt_stands_in_for_an_empty_caption(studio: Any, tmp_path: Path) -> None:
    captioned = studio.plan("captioned", train_steps=2)
    empty = tuple(dataclasses.replace(sample, caption="") for sample in captioned.samples)
    same = tuple(dataclasses.replace(sample, caption="sks") for sample in captioned.samples)
    by_prompt = studio.plan(
        "by-prompt", train_steps=2, instance_prompt="sks", plan_changes={"samples": empty}
    )
    by_caption = studio.plan("by-caption", train_steps=2, plan_changes={"samples": same})
    studio.run(by_prompt)
    studio.run(by_caption)
    left, right = (load(studio.bytes_of(plan)[0]) for plan in (by_prompt, by_caption))
    assert all(torch.equal(left[name], right[name]) for name in left)
