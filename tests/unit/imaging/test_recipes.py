import io
import math

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from sfumato_imaging.errors import NotAnImageError, TruncatedImageError
from sfumato_imaging.recipes import RecipeError, encode_png, parameters_line, read_recipe

RECIPE = {"prompt": "eine Möwe über Zürich 🌊", "seed": 2**53, "steps": 4, "adapters": [{"w": 0.5}]}


def picture() -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def test_the_recipe_comes_back_and_the_pixels_are_the_same() -> None:
    line = parameters_line("eine Möwe 🌊", "blur", {"Steps": 4, "Seed": 1})
    data = encode_png(picture(), recipe=RECIPE, parameters=line)
    stored = read_recipe(data)
    assert stored is not None
    assert stored.recipe == RECIPE
    assert stored.parameters == line
    opened = Image.open(io.BytesIO(data))
    assert opened.tobytes() == picture().tobytes()
    assert opened.text["parameters"] == line


def test_bytes_are_the_same_each_time_and_whatever_the_order_of_keys() -> None:
    image = picture()
    image.info = {"dpi": (300, 300), "icc_profile": b"left over"}
    first = encode_png(picture(), recipe=RECIPE, parameters="p")
    assert first == encode_png(image, recipe=dict(reversed(RECIPE.items())), parameters="p")
    assert image.info["dpi"] == (300, 300)


def test_the_parameters_line() -> None:
    settings = {"Steps": 20, "Sampler": "Euler", "Size": "512x768", "Model": "a: b, c"}
    assert parameters_line("a red apple", "", settings) == (
        'a red apple\nSteps: 20, Sampler: Euler, Size: 512x768, Model: "a: b, c"'
    )
    assert parameters_line("a", "blur", {"Steps": 1}) == "a\nNegative prompt: blur\nSteps: 1"


def test_what_is_not_json_is_refused() -> None:
    for recipe in ({"guidance": math.nan}, {"guidance": math.inf}, {"image": picture()}):
        with pytest.raises(RecipeError):
            encode_png(picture(), recipe=recipe, parameters="")
    with pytest.raises(RecipeError, match="bytes"):
        encode_png(picture(), recipe={"prompt": "x" * (1 << 20)}, parameters="")


def png_with(text: str | None, key: str = "sfumato") -> bytes:
    chunks = PngImagePlugin.PngInfo()
    if text is not None:
        chunks.add_text(key, text, zip=True)
    buffer = io.BytesIO()
    picture().save(buffer, format="PNG", pnginfo=chunks)
    return buffer.getvalue()


def test_pictures_of_other_tools() -> None:
    assert read_recipe(png_with(None)) is None
    other = read_recipe(png_with("a cat\nSteps: 3", key="parameters"))
    assert other is not None
    assert (other.recipe, other.parameters) == (None, "a cat\nSteps: 3")
    assert read_recipe(png_with("x" * (4 << 20))) is None


@pytest.mark.parametrize("text", ["no json", "[1]", "[" * 100_000])
def test_a_chunk_that_is_no_recipe_is_refused(text: str) -> None:
    with pytest.raises(RecipeError):
        read_recipe(png_with(text))


def test_what_is_not_a_whole_png_is_refused() -> None:
    with pytest.raises(NotAnImageError):
        read_recipe(b"GIF89a")
    with pytest.raises(TruncatedImageError):
        read_recipe(png_with("{}")[:-20])
