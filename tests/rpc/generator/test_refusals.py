"""What is refused at the door, with the field or the reason; nothing is loaded for it."""

import json
import shutil
import uuid
from datetime import timedelta

import pytest
import pytest_asyncio

from sfumato_chassis.leases import device_key
from sfumato_client import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    SfumatoError,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

LONGEST = "\U0001f98a" * 8192
"""Four bytes each."""
DIGEST = f"sha256:{'0' * 64}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def studio(studio_of):
    """A service that never gets its device: what is accepted waits."""
    async with studio_of(generator__max_queued_generations=1) as studio:
        await studio.platform.leases.acquire(
            device_key("cpu"), "run-1", "training", duration=timedelta(minutes=10)
        )
        yield studio


async def refusal_of(studio, family="z-image", **fields):
    """The refusal of a request that is only validated."""
    with pytest.raises(SfumatoError) as refusal:
        await studio.create(family, validate_only=True, **fields)
    return refusal.value


@pytest.mark.parametrize(
    ("family", "fields", "field"),
    [
        ("z-image", {"prompt": ""}, "prompt"),
        ("z-image", {"width": 72}, "width"),
        ("flux.1", {"height": 1000}, "height"),
        ("z-image", {"width": 32}, "width"),
        ("z-image", {"width": 4096}, "width"),
        ("z-image", {"height": 2064}, "height"),
        ("z-image", {"steps": 201}, "steps"),
        ("z-image", {"guidance": "NaN"}, "guidance"),
        ("z-image", {"guidance": 31.0}, "guidance"),
        ("z-image", {"seed": 2**53}, "seed"),
        ("z-image", {"seed": 2**53 - 1, "count": 2}, "seed"),
        ("z-image", {"count": 65}, "count"),
        ("z-image", {"count": 64, "prompt": LONGEST, "negative_prompt": LONGEST}, "count"),
        ("flux.1", {"negative_prompt": "blurry"}, "negative_prompt"),
        ("z-image", {"negative_prompt": "blurry", "guidance": 0.0}, "negative_prompt"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else value,
)
async def test_a_value_that_cannot_be_honoured_names_its_field(studio, family, fields, field):
    error = await refusal_of(studio, family, **fields)

    assert isinstance(error, InvalidArgument)
    assert error.reason == "FIELD_INVALID"
    assert [violation.field for violation in error.field_violations] == [f"configuration.{field}"]


@pytest.mark.parametrize(
    "model",
    [
        {"single_file": {"path": "model.safetensors"}},
        {"gguf": {"path": "model.gguf", "companion_base": {"id": "a/b"}}},
        {"directory": {"path": "no-index"}},
        {"directory": {"path": "other-pipeline"}},
    ],
)
async def test_a_model_that_is_not_supported(studio, model):
    models = studio.platform.data_dir / "models"
    (models / "no-index").mkdir(parents=True, exist_ok=True)
    (models / "other-pipeline").mkdir(exist_ok=True)
    index = models / "other-pipeline" / "model_index.json"
    index.write_text(json.dumps({"_class_name": "StableDiffusionPipeline"}))
    error = await refusal_of(studio, model=model)

    assert isinstance(error, FailedPrecondition)
    assert error.reason == "MODEL_UNSUPPORTED"
    assert str(models) not in error.message


async def test_a_family_that_the_model_is_not_of(studio):
    request = studio.request("z-image", validate_only=True)
    request.configuration.family = "flux.1"
    with pytest.raises(InvalidArgument) as refusal:
        await studio.client.generator.create_generation(request)

    assert refusal.value.field_violations[0].field == "configuration.family"


async def test_a_model_that_lacks_a_component(studio, tiny_models):
    model = studio.platform.data_dir / "models" / "without-tokenizer"
    shutil.copytree(tiny_models / "z-image", model)
    shutil.rmtree(model / "tokenizer")
    error = await refusal_of(studio, "without-tokenizer")

    assert isinstance(error, FailedPrecondition)
    assert (error.reason, error.details["component"]) == ("MODEL_UNSUPPORTED", "tokenizer")


async def test_a_model_whose_latents_have_no_scale(studio, tiny_models):
    model = studio.platform.data_dir / "models" / "without-scale"
    shutil.copytree(tiny_models / "z-image", model)
    file = model / "vae" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "scaling_factor": 0}))
    error = await refusal_of(studio, "without-scale")

    assert isinstance(error, FailedPrecondition)
    assert (error.reason, error.details["component"]) == ("MODEL_UNSUPPORTED", "vae")
    assert error.message == "vae: scaling_factor must be a number above 0"


async def test_a_family_that_does_not_exist(studio):
    request = studio.request(validate_only=True)
    request.configuration.family = "sdxl-9"
    with pytest.raises(FailedPrecondition) as refusal:
        await studio.client.generator.create_generation(request)

    assert refusal.value.reason == "MODEL_UNSUPPORTED"
    assert "z-image" in refusal.value.message


@pytest.mark.parametrize("path", ["absent", "..", "/etc", "../../etc", "z-image/../../data"])
async def test_missing_and_forbidden_paths_answer_alike(studio, path):
    error = await refusal_of(studio, path)

    assert isinstance(error, NotFound)
    assert error.reason == "PATH_NOT_FOUND"
    assert error.message == f"no model {path!r} under the allowed folders"


async def test_a_repository_that_is_not_on_this_machine(studio, hub_snapshot):
    hub_snapshot("Tongyi-MAI/Z-Image", "z-image")
    missing = await refusal_of(studio, model={"hub": {"id": "Tongyi-MAI/Z-Image-Turbo"}})
    present = {"hub": {"id": "Tongyi-MAI/Z-Image", "revision": "main"}}
    found = await studio.create(validate_only=True, model=present)
    unresolved = {"hub": {"id": "Tongyi-MAI/Z-Image", "revision": "a" * 40}}
    other_commit = await refusal_of(studio, model=unresolved)

    for error in (missing, other_commit):
        assert isinstance(error, NotFound)
        assert error.reason == "RESOURCE_NOT_FOUND"
    assert "Tongyi-MAI/Z-Image-Turbo" in missing.message
    assert found.resolved_configuration.model.hub.revision == "main"


async def test_pickled_weights(studio, tiny_models):
    model = studio.platform.data_dir / "models" / "pickled"
    shutil.copytree(tiny_models / "z-image", model)
    for file in (model / "vae").glob("*.safetensors"):
        file.rename(file.with_suffix(".bin"))
    error = await refusal_of(studio, "pickled")

    assert isinstance(error, FailedPrecondition)
    assert error.reason == "WEIGHTS_UNSAFE"
    assert error.details["component"] == "vae"


async def test_a_base_without_guidance_embedding_ignores_guidance(studio, tiny_models):
    model = studio.platform.data_dir / "models" / "distilled"
    shutil.copytree(tiny_models / "flux.1", model)
    file = model / "transformer" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "guidance_embeds": False}))
    plain = studio.request("distilled", validate_only=True)
    plain.configuration.ClearField("steps")
    resolved = (await studio.client.generator.create_generation(plain)).generation
    error = await refusal_of(studio, "distilled", guidance=3.5)

    assert resolved.resolved_configuration.steps == 4
    assert resolved.resolved_configuration.guidance == 0.0
    assert error.field_violations[0].field == "configuration.guidance"
    await studio.create("distilled", validate_only=True, guidance=0.0)


@pytest.mark.parametrize("source", [{"upload_digest": DIGEST}, {"hub": {"id": "a/b"}}])
async def test_adapters_from_where_none_can_be_taken(studio, source):
    error = await refusal_of(studio, adapters=[{"adapter": source}])

    assert isinstance(error, FailedPrecondition)
    assert error.reason == "ADAPTER_INCOMPATIBLE"
    assert error.details["field"] == "configuration.adapters[0].adapter"


async def test_a_request_id_with_another_body(studio):
    request_id = str(uuid.uuid4())
    first = await studio.create(request_id=request_id, steps=1)
    with pytest.raises(AlreadyExists) as refusal:
        await studio.create(request_id=request_id, steps=2)
    assert refusal.value.reason == "REQUEST_ID_REUSED"
    await studio.client.generator.cancel_generation(first.name)


async def test_a_full_queue(studio):
    waiting = await studio.create()
    with pytest.raises(ResourceExhausted) as refusal:
        await studio.create()
    assert refusal.value.reason == "QUEUE_FULL"
    assert refusal.value.retry_delay_seconds > 0
    await studio.client.generator.cancel_generation(waiting.name)
    next_one = await studio.create()
    await studio.client.generator.cancel_generation(next_one.name)


async def test_what_has_not_ended_is_not_deleted(studio):
    waiting = await studio.create()
    with pytest.raises(FailedPrecondition) as refusal:
        await studio.client.generator.delete_generation(waiting.name)
    assert refusal.value.reason == "JOB_STATE_UNSUITABLE"
    await studio.client.generator.cancel_generation(waiting.name)
    await studio.client.generator.delete_generation(waiting.name)


async def test_what_is_not_there(studio):
    for call in (
        studio.client.generator.get_image,
        studio.client.generator.get_generation,
        studio.client.generator.cancel_generation,
        studio.client.generator.delete_generation,
    ):
        with pytest.raises(NotFound):
            await call("nothing")
