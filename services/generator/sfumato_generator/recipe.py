"""What a picture says of how it was made: all that determines it, and nothing else.

No times and no names of jobs: the same recipe on the same machine gives the same bytes, and the recipe
of one image of several is that of the image alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image

from sfumato_generator.plan import GenerationPlan
from sfumato_imaging.recipes import encode_png, parameters_line


def encode_with_recipe(
    image: Image.Image,
    plan: GenerationPlan,
    *,
    seed: int,
    model_revision: str,
    scheduler: str,
    components: Sequence[Mapping[str, str]],
) -> bytes:
    """A PNG with the recipe inside.

    Args:
        image: The picture.
        plan: What it was made after.
        seed: Its own.
        model_revision: Marker of the weights that were loaded.
        scheduler: Class of the scheduler.
        components: Precision of each component.
    """
    configuration = {**plan.configuration.to_json(), "seed": seed, "count": 1}
    recipe: dict[str, Any] = {
        "configuration": configuration,
        "model_revision": model_revision,
        "scheduler": scheduler,
        "components": [dict(component) for component in components],
        "adapters": [
            {"name": adapter.name, "digest": adapter.digest, "weight": adapter.weight}
            for adapter in plan.adapters
        ],
    }
    return encode_png(image, recipe=recipe, parameters=summary(plan, seed, scheduler))


def summary(plan: GenerationPlan, seed: int, scheduler: str) -> str:
    """The recipe as other tools read it."""
    wanted = plan.configuration
    settings: dict[str, object] = {
        "Steps": wanted.steps,
        "Sampler": scheduler,
        "CFG scale": f"{wanted.guidance:g}",
        "Seed": seed,
        "Size": f"{wanted.width}x{wanted.height}",
        "Model": wanted.model.reference,
    }
    if plan.adapters:
        adapters = [f"{adapter.name}:{adapter.weight:g}" for adapter in plan.adapters]
        settings["Adapters"] = ", ".join(adapters)
    return parameters_line(wanted.prompt, wanted.negative_prompt or "", settings)
