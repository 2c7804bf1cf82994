"""Pictures from prompts: bytes, seeds, recipes, events, gallery."""

import hashlib
import json
import shutil
import uuid
from collections import Counter

import pytest
import pytest_asyncio
from google.protobuf import json_format
from safetensors.torch import load_file, save_file

from sfumato.generator.v1 import generator_pb2
from sfumato.job.v1 import job_pb2
from sfumato_client import (
    Addresses,
    Client,
    Connection,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
)
from sfumato_diffusion.families.registry import build_tiny
from sfumato_imaging.reader import read_image
from sfumato_imaging.recipes import read_recipe

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def studio(studio_of):
    async with studio_of() as studio:
        yield studio


@pytest.fixture
def model_copy(studio, tiny_models):
    """Copies a tiny model to ``<data_dir>/models`` under a new name, for a test that damages it."""

    def copy(family, name):
        target = studio.platform.data_dir / "models" / name
        shutil.copytree(tiny_models / family, target)
        return target

    return copy


@pytest.mark.parametrize("family", ["z-image", "flux.1"])
async def test_the_same_seed_gives_the_same_bytes_and_another_prompt_other_pixels(studio, family):
    first = await studio.make(family, seed=7)
    again = await studio.make(family, seed=7)
    other = await studio.make(family, seed=7, prompt="a blue teapot on a table")

    assert first.status.state == job_pb2.JOB_STATE_SUCCEEDED, first.status.error
    png = await studio.picture(first.images[0])
    assert await studio.picture(again.images[0]) == png
    assert again.images[0].name != first.images[0].name
    picture = read_image(png)
    assert picture.size == (64, 64)
    assert picture.tobytes() != read_image(await studio.picture(other.images[0])).tobytes()


async def test_image_i_has_seed_plus_i_and_is_the_same_alone(studio):
    several = await studio.make(seed=100, count=3)
    alone = await studio.make(seed=102)

    assert [image.seed for image in several.images] == [100, 101, 102]
    pictures = [await studio.picture(image) for image in several.images]
    assert len(set(pictures)) == 3
    assert await studio.picture(alone.images[0]) == pictures[2]


async def test_every_default_is_resolved_and_echoed(studio):
    generation = await studio.make(steps=3)

    resolved = generation.resolved_configuration
    assert resolved.family == "z-image"
    assert resolved.guidance == 4.0
    assert resolved.count == 1
    assert resolved.HasField("seed")
    assert resolved.model.directory.path == "z-image"
    assert resolved.WhichOneof("workflow") == "text_to_image"
    assert generation.model_revision.startswith("dir-")
    assert {(status.component, status.engaged) for status in generation.components} == {
        ("vae", "fp32"),
        ("text_encoder", "fp32"),
        ("transformer", "fp32"),
    }
    repeated = await studio.client.generator.create_generation(
        generator_pb2.CreateGenerationRequest(configuration=resolved)
    )
    again = await studio.ended(repeated.generation.name)
    assert again.resolved_configuration == resolved
    assert again.images[0].file == generation.images[0].file


async def test_only_validating_makes_nothing(studio):
    request = studio.request(validate_only=True)
    answer = await studio.client.generator.create_generation(request)

    assert answer.generation.name == ""
    assert answer.generation.resolved_configuration.steps == 2
    with pytest.raises(NotFound):
        await studio.client.generator.get_generation("generation-0000000000000000")


async def test_a_file_holds_the_recipe_that_makes_it_again(studio):
    generation = await studio.make(seed=31, count=2, negative_prompt="blurry", guidance=3.5)
    image = generation.images[1]
    png = await studio.picture(image)

    assert image.file.digest == f"sha256:{hashlib.sha256(png).hexdigest()}"
    assert image.file.size_bytes == len(png)
    stored = read_recipe(png)
    assert stored.recipe["model_revision"] == image.model_revision
    assert stored.recipe["scheduler"] == "FlowMatchEulerDiscreteScheduler"
    assert stored.parameters.splitlines()[:2] == [
        "a red fox in the snow",
        "Negative prompt: blurry",
    ]
    assert "Steps: 2" in stored.parameters
    assert "Seed: 32" in stored.parameters
    recipe = json_format.ParseDict(
        stored.recipe["configuration"], generator_pb2.GenerationConfiguration()
    )
    assert recipe.seed == 32
    remade = await studio.client.generator.create_generation(
        generator_pb2.CreateGenerationRequest(configuration=recipe)
    )
    again = await studio.ended(remade.generation.name)
    assert await studio.picture(again.images[0]) == png


async def test_the_log_tells_everything_in_order(studio):
    generation = await studio.make(seed=5, count=2, steps=3)
    events = await studio.events(generation.name)

    assert [event.header.sequence for event in events] == list(range(1, len(events) + 1))
    kinds = [event.WhichOneof("event") for event in events]
    assert kinds[0] == "queued"
    assert [kind for kind in kinds if kind in {"started", "loaded", "succeeded"}] == [
        "started",
        "loaded",
        "succeeded",
    ]
    assert Counter(kinds)["image_saved"] == 2
    started = events[kinds.index("started")].started
    assert (started.attempt, started.device) == (1, "cpu")
    last_step = [event.step for event in events if event.HasField("step")][-1]
    assert (last_step.image, last_step.num_images, last_step.step, last_step.num_steps) == (
        2,
        2,
        3,
        3,
    )
    assert generation.progress == last_step
    saved = [event.image_saved for event in events if event.HasField("image_saved")]
    assert saved == list(generation.images)
    assert events[-1].succeeded.num_images == 2
    assert events[-1].succeeded.duration.ToTimedelta().total_seconds() > 0


async def test_steps_are_told_at_most_five_times_a_second(studio):
    generation = await studio.make(steps=100, width=128, height=128)
    events = await studio.events(generation.name)

    times = [event.header.time.ToNanoseconds() / 1e9 for event in events if event.HasField("step")]
    assert len(times) <= 2 + (times[-1] - times[0]) / 0.19
    assert generation.progress.step == 100


async def test_a_repeated_create_answers_the_first_generation(studio):
    request = studio.request(request_id=str(uuid.uuid4()))
    first = await studio.client.generator.create_generation(request)
    second = await studio.client.generator.create_generation(request)
    await studio.ended(first.generation.name)
    third = await studio.client.generator.create_generation(request)

    assert not first.deduplicated
    assert second.deduplicated
    assert third.deduplicated
    names = {answer.generation.name for answer in (first, second, third)}
    assert names == {first.generation.name}
    assert first.generation.resolved_configuration == third.generation.resolved_configuration


async def test_the_gallery_pages_are_stable_while_images_are_added(studio):
    await studio.make(seed=1, count=5)
    everything = [image.name async for image in studio.client.generator.list_images(page_size=200)]
    seen = []
    pages = studio.client.generator.list_images(page_size=2)
    async for image in pages:
        seen.append(image.name)
        if len(seen) == 3:
            newer = await studio.make(seed=50, count=2)
    assert seen == everything
    newest = [image.name async for image in studio.client.generator.list_images()][:2]
    assert newest == [newer.images[1].name, newer.images[0].name]


async def test_a_deleted_generation_leaves_its_images(studio):
    generation = await studio.make(seed=9)
    image = generation.images[0]
    await studio.client.generator.delete_generation(generation.name)

    with pytest.raises(NotFound) as refusal:
        await studio.client.generator.get_generation(generation.name)
    assert refusal.value.reason == "JOB_EXPIRED"
    assert await studio.client.generator.get_image(image.name) == image
    of_generation = studio.client.generator.list_images(generation=generation.name)
    assert [found async for found in of_generation] == [image]
    assert len(await studio.picture(image)) == image.file.size_bytes


async def test_it_is_too_late_to_cancel_what_has_succeeded(studio):
    ended = await studio.make()
    with pytest.raises(FailedPrecondition) as refusal:
        await studio.client.generator.cancel_generation(ended.name)
    assert refusal.value.reason == "JOB_STATE_UNSUITABLE"


async def test_a_page_token_of_another_list(studio):
    await studio.make(count=2)
    generator = studio.client.generator
    page = await generator.stub.ListImages(generator_pb2.ListImagesRequest(page_size=1))
    other = generator_pb2.ListGenerationsRequest(page_token=page.next_page_token)
    with pytest.raises(InvalidArgument) as refusal:
        await generator.caller.once(generator.stub.ListGenerations, other)
    assert refusal.value.reason == "PAGE_TOKEN_INVALID"


async def test_another_owner_sees_nothing(studio):
    generation = await studio.make(seed=3)
    address = await studio.platform.address_of("generator")
    async with Client(Connection(addresses=Addresses.all_at(address), principal="eve")) as eve:
        with pytest.raises(NotFound):
            await eve.generator.get_generation(generation.name)
        with pytest.raises(NotFound):
            await eve.generator.get_image(generation.images[0].name)
        assert [image async for image in eve.generator.list_images()] == []


async def test_generations_are_listed_newest_first_with_their_images(studio):
    older = await studio.make(seed=1)
    newer = await studio.make(seed=2)
    listed = [item async for item in studio.client.generator.list_generations(page_size=1)]
    assert listed[:2] == [newer, older]


async def test_cancel_reaches_the_denoising_loop_within_one_step(studio):
    generation = await studio.create(steps=200, count=64, width=128, height=128)
    await studio.until(generation.name, lambda event: event.HasField("step"))
    await studio.client.generator.cancel_generation(generation.name)
    ended = await studio.ended(generation.name)
    events = await studio.events(generation.name)

    assert ended.status.state == job_pb2.JOB_STATE_CANCELLED
    kinds = [event.WhichOneof("event") for event in events]
    after = kinds[kinds.index("cancel_requested") :]
    assert after[-1] == "cancelled"
    assert after.count("step") <= 1
    assert "image_saved" not in after
    assert (await studio.client.generator.cancel_generation(generation.name)) == ended


async def test_a_queued_generation_is_cancelled_without_touching_the_running_one(studio):
    running = await studio.create(steps=100, width=128, height=128)
    queued = await studio.create()
    last = await studio.create()
    assert (await studio.client.generator.cancel_generation(queued.name)).status.state == (
        job_pb2.JOB_STATE_CANCELLED
    )
    assert (await studio.ended(running.name)).status.state == job_pb2.JOB_STATE_SUCCEEDED
    assert (await studio.ended(last.name)).status.state == job_pb2.JOB_STATE_SUCCEEDED
    positions = [
        event.queued.position
        for event in await studio.events(last.name)
        if event.HasField("queued")
    ]
    assert positions == sorted(positions, reverse=True)
    assert positions[-1] == 1


async def test_numbers_that_are_none_are_an_error_and_no_image(studio, model_copy):
    spoil_vae(model_copy("z-image", "with-nan"), lambda tensor: tensor.fill_(float("nan")))
    failed = await studio.make("with-nan")

    assert failed.status.state == job_pb2.JOB_STATE_FAILED
    assert failed.status.error.reason == 133  # OUTPUT_NOT_FINITE
    assert "no numbers" in failed.status.error.message
    assert not failed.images


async def test_a_black_picture_is_an_error_and_no_image(studio, model_copy):
    spoil_vae(model_copy("z-image", "black"), lambda tensor: tensor.fill_(-100.0))
    failed = await studio.make("black")

    assert failed.status.error.reason == 133  # OUTPUT_NOT_FINITE
    assert "black" in failed.status.error.message
    assert not failed.images


async def test_a_model_that_cannot_be_loaded_fails_its_generation_only(studio, model_copy):
    model = model_copy("flux.1", "damaged")
    (model / "transformer" / "config.json").write_text("{}")
    failed = await studio.make("damaged")

    assert failed.status.error.reason == 135  # MODEL_LOAD_FAILED
    assert failed.status.error.message == (
        "the base model could not be loaded: transformer cannot be read"
    )
    assert failed.status.error.error_id
    assert (await studio.make()).status.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_model_of_more_layers_than_its_settings_say(studio, model_copy):
    file = model_copy("z-image", "shortened") / "transformer" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "n_layers": 0}))
    failed = await studio.make("shortened")

    assert failed.status.error.reason == 135  # MODEL_LOAD_FAILED
    assert failed.status.error.message.startswith(
        "base model: transformer: its architecture has no layers.0."
    )


async def test_a_model_that_is_gone_when_its_turn_comes(studio, model_copy):
    model = model_copy("z-image", "gone")
    before = await studio.create(count=8)
    waiting = await studio.create("gone")
    shutil.rmtree(model / "tokenizer")
    failed = await studio.ended(waiting.name)

    assert failed.status.error.reason == 135  # MODEL_LOAD_FAILED
    assert failed.status.error.message == "base model: tokenizer: is missing"
    assert (await studio.ended(before.name)).status.state == job_pb2.JOB_STATE_SUCCEEDED


async def test_a_model_of_the_hub_comes_from_the_local_cache(studio, hub_snapshot):
    commit = hub_snapshot("Tongyi-MAI/Z-Image-Turbo", "z-image")
    generation = await studio.make(model={"hub": {"id": "Tongyi-MAI/Z-Image-Turbo"}})

    assert generation.status.state == job_pb2.JOB_STATE_SUCCEEDED, generation.status.error
    assert generation.model_revision == f"rev-{commit[:16]}"
    assert generation.resolved_configuration.model.hub.revision == commit
    assert generation.resolved_configuration.guidance == 0.0


async def test_changed_weights_are_loaded_anew(studio, model_copy):
    model = model_copy("z-image", "changing")
    before = await studio.make("changing", seed=1)
    build_other(model)
    after = await studio.make("changing", seed=1)

    assert before.model_revision != after.model_revision
    assert before.images[0].file.digest != after.images[0].file.digest


def spoil_vae(model, change):
    """Changes the bias of the last layer of a model's VAE."""
    file = model / "vae" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(file)
    change(tensors["decoder.conv_out.bias"])
    save_file(tensors, file, metadata={"format": "pt"})


def build_other(model):
    """Other random weights in place of a model's."""
    shutil.rmtree(model)
    build_tiny("z-image", model, seed=1)
