"""Pictures that carry how they were made, in PNG text chunks.

`sfumato` holds the complete recipe as JSON; `parameters` holds the one-line summary that other
tools read (the format of the AUTOMATIC1111 web UI's generation parameters).
"""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from PIL import Image, PngImagePlugin

from sfumato_imaging.png_chunks import png_texts

RECIPE_KEY: Final = "sfumato"
PARAMETERS_KEY: Final = "parameters"
MAX_RECIPE_BYTES: Final = 1 << 19

_COMPRESSION_LEVEL: Final = 6
_NEEDS_QUOTES: Final = frozenset(',:"\n')


class RecipeError(Exception):
    """The recipe is too large to store, or what is stored is not one of ours."""

    reason = "RECIPE_INVALID"


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRecipe:
    """`recipe` is None where the picture carries only another tool's `parameters`."""

    recipe: Mapping[str, Any] | None
    parameters: str | None


def encode_png(image: Image.Image, *, recipe: Mapping[str, Any], parameters: str) -> bytes:
    """Encode with the recipe inside; the same arguments give the same bytes on one build.

    Args:
        recipe: JSON values only; NaN and infinities are refused.
        parameters: see `parameters_line`.

    Raises:
        RecipeError: the recipe is not JSON, or over MAX_RECIPE_BYTES.
    """
    try:
        text = json.dumps(
            recipe, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
        )
    except (TypeError, ValueError) as error:
        raise RecipeError(f"the recipe is not JSON: {error}") from error
    if max(len(text), len(parameters.encode())) > MAX_RECIPE_BYTES:
        raise RecipeError(f"the recipe takes more than {MAX_RECIPE_BYTES} bytes")
    chunks = PngImagePlugin.PngInfo()
    chunks.add_text(RECIPE_KEY, text)
    chunks.add_itxt(PARAMETERS_KEY, parameters)
    buffer = io.BytesIO()
    plain = image.copy()
    plain.info = {}
    plain.save(buffer, format="PNG", pnginfo=chunks, compress_level=_COMPRESSION_LEVEL)
    return buffer.getvalue()


def read_recipe(data: bytes) -> StoredRecipe | None:
    """The recipe inside a PNG, or None when it carries none. Pixels are not decoded.

    Raises:
        ImageError: not a readable PNG.
        RecipeError: the `sfumato` chunk does not hold a JSON object.
    """
    texts = png_texts(data)
    stored, parameters = texts.get(RECIPE_KEY), texts.get(PARAMETERS_KEY)
    if stored is None:
        return None if parameters is None else StoredRecipe(recipe=None, parameters=parameters)
    try:
        recipe = json.loads(stored)
    except (ValueError, RecursionError) as error:
        raise RecipeError("the stored recipe is not JSON") from error
    if not isinstance(recipe, dict):
        raise RecipeError("the stored recipe is not a JSON object")
    return StoredRecipe(recipe=recipe, parameters=parameters)


def parameters_line(prompt: str, negative_prompt: str, settings: Mapping[str, object]) -> str:
    """Prompt, negative prompt and `Key: value` settings as other tools expect them.

    Args:
        settings: in the order wanted, with the names those tools know: Steps, Sampler,
            CFG scale, Seed, Size, Model. Values holding a comma, colon, quote or line break are
            written as JSON strings.
    """
    lines = [prompt]
    if negative_prompt:
        lines.append(f"Negative prompt: {negative_prompt}")
    lines.append(", ".join(f"{key}: {_quoted(str(value))}" for key, value in settings.items()))
    return "\n".join(lines)


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False) if _NEEDS_QUOTES.intersection(value) else value
