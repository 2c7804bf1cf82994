"""Defaults and refusals, without a server."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from sfumato_chassis.errors import FailedPrecondition, InvalidArgument, NotFound, Reason
from sfumato_chassis.threads import MAX_READERS, Threads
from sfumato_diffusion.families.registry import family_info
from sfumato_diffusion.seeds import LARGEST_SEED
from sfumato_generator import resolver
from sfumato_generator.configuration import AdapterChoice, GenerationRequest, ModelSource
from sfumato_generator.models import LocatedModel
from sfumato_generator.resolver import (
    FoundAdapter,
    GenerationResolver,
    check_adapter_kinds,
    check_adapters,
    resolve_configuration,
    resolve_precision,
)

PATIENCE_SECONDS = 10
SHORT_SECONDS = 0.2
Z_IMAGE, FLUX = family_info("z-image"), family_info("flux.1")
TURBO, BASE = Z_IMAGE.bases
SCHNELL, DEV, KREA = FLUX.bases


def located(info, base):
    return LocatedModel(
        source=ModelSource(kind="hub", reference=base.repository, revision="main"),
        directory=Path("/nowhere"),
        marker="rev-0",
        info=info,
        base=base,
        max_side=info.maximum_side,
    )


def asked(**fields):
    source = ModelSource(kind="hub", reference="a/b")
    return GenerationRequest(model=source, prompt="a fox", workflow="text_to_image", **fields)


def resolve(info, base, **fields):
    return resolve_configuration(asked(**fields), located(info, base), draw_seed=lambda: 17)


@pytest.mark.parametrize(
    ("info", "base", "steps", "guidance"),
    [
        (Z_IMAGE, TURBO, 9, 0.0),
        (Z_IMAGE, BASE, 20, 4.0),
        (FLUX, SCHNELL, 4, 0.0),
        (FLUX, DEV, 28, 3.5),
        (FLUX, KREA, 28, 4.5),
    ],
    ids=lambda value: getattr(value, "repository", None),
)
def test_each_base_has_its_own_defaults(info, base, steps, guidance):
    resolved = resolve(info, base)
    assert (resolved.steps, resolved.guidance) == (steps, guidance)
    assert (resolved.width, resolved.height) == (1024, 1024)
    assert (resolved.seed, resolved.count) == (17, 1)
    assert resolved.family == info.name


def test_zero_is_a_value_of_its_own():
    resolved = resolve(Z_IMAGE, BASE, seed=0, guidance=0.0)
    assert (resolved.seed, resolved.guidance) == (0, 0.0)


@pytest.mark.parametrize(
    ("info", "base", "fields", "field"),
    [
        (FLUX, SCHNELL, {"guidance": 1.0}, "guidance"),
        (FLUX, DEV, {"negative_prompt": "x"}, "negative_prompt"),
        (Z_IMAGE, TURBO, {"negative_prompt": "x"}, "negative_prompt"),
        (Z_IMAGE, BASE, {"negative_prompt": "x", "guidance": 0.0}, "negative_prompt"),
        (Z_IMAGE, BASE, {"width": 1000}, "width"),
        (Z_IMAGE, BASE, {"height": 4112}, "height"),
        (Z_IMAGE, BASE, {"seed": LARGEST_SEED, "count": 2}, "seed"),
    ],
)
def test_what_would_do_nothing_is_refused_by_name(info, base, fields, field):
    with pytest.raises(InvalidArgument) as refusal:
        resolve(info, base, **fields)
    assert refusal.value.violations[0].path == f"configuration.{field}"


@pytest.mark.parametrize(
    ("info", "base", "fields"),
    [
        (FLUX, SCHNELL, {"guidance": 0.0}),
        (FLUX, DEV, {"negative_prompt": ""}),
        (Z_IMAGE, TURBO, {"negative_prompt": "x", "guidance": 2.0}),
        (Z_IMAGE, BASE, {"seed": LARGEST_SEED - 1, "count": 2}),
    ],
)
def test_what_acts_or_changes_nothing_is_accepted(info, base, fields):
    resolved = resolve(info, base, **fields)
    assert resolved.negative_prompt == (fields.get("negative_prompt") or None)


def test_a_workflow_that_the_family_lacks():
    video = replace(asked(), workflow="video")
    with pytest.raises(FailedPrecondition) as refusal:
        resolve_configuration(video, located(Z_IMAGE, BASE), draw_seed=lambda: 1)
    assert refusal.value.reason is Reason.MODEL_UNSUPPORTED


@pytest.mark.parametrize(
    ("requested", "device", "engaged"),
    [("auto", "cpu", "fp32"), ("auto", "cuda:0", "bf16"), ("bf16", "cpu", "bf16")],
)
def test_precision(requested, device, engaged):
    assert resolve_precision(requested, device, Z_IMAGE) == engaged


@pytest.mark.parametrize(
    ("device", "reason"),
    [("cpu", Reason.MACHINE_INCAPABLE), ("cuda:0", Reason.MODEL_UNSUPPORTED)],
)
def test_a_precision_that_cannot_be_had(device, reason):
    with pytest.raises(FailedPrecondition) as refusal:
        resolve_precision("fp16", device, Z_IMAGE)
    assert refusal.value.reason is reason


def adapter(base, *, family="flux.1", digest="sha256:1"):
    trained_on = None if base is None else ModelSource(kind="hub", reference=base)
    return FoundAdapter(
        name="adapter-1",
        digest=digest,
        size_bytes=1,
        media_type="application/vnd.safetensors",
        family=family,
        base_model=trained_on,
    )


@pytest.mark.parametrize(
    "trained_on", [None, DEV.repository, DEV.repository.upper(), "someone/finetune"]
)
def test_adapters_that_deploy_on_the_base(trained_on):
    check_adapters([adapter(trained_on)], located(FLUX, SCHNELL))


@pytest.mark.parametrize(
    "found", [adapter(KREA.repository), adapter(None, family="z-image")], ids=["base", "family"]
)
def test_adapters_that_do_not(found):
    with pytest.raises(FailedPrecondition) as refusal:
        check_adapters([adapter(None, digest="sha256:2"), found], located(FLUX, SCHNELL))
    assert refusal.value.reason is Reason.ADAPTER_INCOMPATIBLE
    assert refusal.value.details["field"] == "configuration.adapters[1].adapter"


def test_an_adapter_twice():
    with pytest.raises(InvalidArgument):
        check_adapters([adapter(None), adapter(None)], located(FLUX, DEV))


@pytest.mark.parametrize("kind", ["upload_digest", "hub"])
def test_adapters_from_elsewhere(kind):
    with pytest.raises(FailedPrecondition) as refusal:
        check_adapter_kinds([AdapterChoice(kind=kind, reference="x")])
    assert refusal.value.reason is Reason.ADAPTER_INCOMPATIBLE


async def test_models_that_hang_stop_nothing_but_calls_that_read_models(monkeypatch):
    go_on = threading.Event()
    locate_model = resolver.locate_model

    def hang(*args, **kwargs):
        go_on.wait(PATIENCE_SECONDS)
        return locate_model(*args, **kwargs)

    monkeypatch.setattr(resolver, "locate_model", hang)
    models = GenerationResolver(
        roots=[],
        cache_roots=list,
        adapters=None,  # a model that is not there is refused before any adapter is looked for
        device="cpu",
        precision="auto",
        draw_seed=lambda: 17,
        reading=Threads("read-model", limit=MAX_READERS),
    )

    async def give_up():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(SHORT_SECONDS):
                await models.resolve(asked(), "local")

    await asyncio.gather(*(give_up() for _ in range(MAX_READERS + 20)))
    assert await asyncio.wait_for(asyncio.to_thread(int), PATIENCE_SECONDS / 2) == 0
    go_on.set()
    with pytest.raises(NotFound):
        await asyncio.wait_for(models.resolve(asked(), "local"), PATIENCE_SECONDS)
