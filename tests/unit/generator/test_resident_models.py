"""Models that stay, leave and are told apart."""

from dataclasses import replace

import pytest
from PIL import Image

from sfumato_diffusion.families.registry import build_tiny
from sfumato_generator.configuration import Configuration, ModelSource
from sfumato_generator.plan import GenerationPlan
from sfumato_generator.resident_models import ResidentModels
from sfumato_generator.worker import is_black


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """A plan for each of three models, two of one family."""
    made = []
    for family, seed in (("z-image", 0), ("z-image", 1), ("flux.1", 0)):
        folder = tmp_path_factory.mktemp("model")
        build_tiny(family, folder, seed)
        configuration = Configuration(
            model=ModelSource(kind="directory", reference="tiny"),
            family=family,
            prompt="a fox",
            negative_prompt=None,
            width=64,
            height=64,
            steps=1,
            guidance=1.0,
            seed=1,
            count=1,
            adapters=(),
            workflow="text_to_image",
        )
        plan = GenerationPlan(
            configuration=configuration,
            model_directory=str(folder),
            model_marker="",
            requested_precision="auto",
            precision="fp32",
            adapters=(),
        )
        made.append(plan)
    return made


def test_the_least_recently_used_model_leaves_first(plans):
    first, second, third = plans
    loaded = []
    models = ResidentModels(device="cpu", max_models=2)

    def was_resident(plan):
        return models.take(plan, loaded.append)[1]

    assert not was_resident(first)
    assert not was_resident(second)
    assert was_resident(first)
    assert not was_resident(third)
    assert was_resident(first)
    assert not was_resident(second)
    assert loaded == ["pipeline"] * 4


def test_another_precision_is_another_model(plans):
    models = ResidentModels(device="cpu", max_models=2)
    single, _ = models.take(plans[0], lambda _: None)
    half, was_resident = models.take(replace(plans[0], precision="bf16"), lambda _: None)

    assert not was_resident
    assert {status["engaged"] for status in single.components("auto")} == {"fp32"}
    assert {status["engaged"] for status in half.components("bf16")} == {"bf16"}
    assert single.components("auto")[0]["reason"] == "auto takes this on cpu"
    assert half.components("bf16")[0]["reason"] == ""


def test_only_a_picture_without_any_light_is_black():
    assert is_black(Image.new("RGB", (8, 8)))
    dim = Image.new("RGB", (8, 8))
    dim.putpixel((7, 7), (0, 0, 1))
    assert not is_black(dim)
