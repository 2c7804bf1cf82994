"""What a picture says of itself."""

from dataclasses import replace

from PIL import Image

from sfumato_generator.configuration import AdapterChoice, Configuration, ModelSource
from sfumato_generator.plan import AdapterFile, GenerationPlan
from sfumato_generator.recipe import encode_with_recipe
from sfumato_imaging.reader import read_image
from sfumato_imaging.recipes import read_recipe

PLAN = GenerationPlan(
    configuration=Configuration(
        model=ModelSource(kind="directory", reference="z-image"),
        family="z-image",
        prompt="a fox, \U0001f98a\nin two lines",
        negative_prompt="blurry",
        width=32,
        height=16,
        steps=9,
        guidance=4.5,
        seed=100,
        count=3,
        adapters=(AdapterChoice(kind="adapter", reference="adapter-1", weight=0.5),),
        workflow="text_to_image",
    ),
    model_directory="/secret/place",
    model_marker="",
    requested_precision="auto",
    precision="fp32",
    adapters=(
        AdapterFile(
            name="adapter-1",
            digest="sha256:ab",
            size_bytes=12,
            media_type="application/vnd.safetensors",
            weight=0.5,
        ),
    ),
)
COMPONENTS = [{"component": "vae", "requested": "auto", "engaged": "fp32", "reason": ""}]
PICTURE = Image.new("RGB", (32, 16), (200, 100, 50))


def encode(plan, seed):
    return encode_with_recipe(
        PICTURE,
        plan,
        seed=seed,
        model_revision="dir-0123",
        scheduler="FlowMatchEulerDiscreteScheduler",
        components=COMPONENTS,
    )


def test_the_recipe_comes_back_whole():
    png = encode(PLAN, 102)
    stored = read_recipe(png)

    made = Configuration.from_json(stored.recipe["configuration"])
    assert made == replace(PLAN.configuration, seed=102, count=1)
    assert stored.recipe["model_revision"] == "dir-0123"
    assert stored.recipe["components"] == COMPONENTS
    assert stored.recipe["adapters"] == [
        {"name": "adapter-1", "digest": "sha256:ab", "weight": 0.5}
    ]
    assert stored.parameters == (
        "a fox, \U0001f98a\nin two lines\nNegative prompt: blurry\n"
        "Steps: 9, Sampler: FlowMatchEulerDiscreteScheduler, CFG scale: 4.5, Seed: 102,"
        ' Size: 32x16, Model: z-image, Adapters: "adapter-1:0.5"'
    )
    assert read_image(png).tobytes() == PICTURE.tobytes()
    assert b"/secret/place" not in png


def test_one_image_of_several_has_the_bytes_of_the_image_alone():
    alone = replace(PLAN, configuration=replace(PLAN.configuration, seed=102, count=1))
    assert encode(alone, 102) == encode(PLAN, 102)
    assert encode(PLAN, 101) != encode(PLAN, 102)
