"""What the libraries load with a warning at most, and what then runs wrong or fails far from its cause."""

import inspect
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any

from sfumato_diffusion.model_folder import ModelFolderError

_NUM_NAMES = 3
_PROMPT = "sfumato"
_LANGUAGE_MODEL_HEAD = "lm_head."
_CONSTANT = "position_ids"
"""A count from 0 that earlier releases of transformers saved beside the weights."""


def check_settings(component: str, settings: Mapping[str, Any], kind: type) -> None:
    """Refuses a value of another type than the class of diffusers takes; it checks none itself.

    Whole and other numbers count as one type, since configurations mix them.

    Raises:
        ModelFolderError: Naming the setting.
    """
    for name, parameter in inspect.signature(kind).parameters.items():
        if name in settings and not _takes(parameter, settings[name]):
            raise ModelFolderError(component, f"{name} is not what {kind.__name__} takes")


def check_tensors(
    component: str, missing: Collection[str], unexpected: Collection[str], *, is_encoder: bool
) -> None:
    """Refuses weights that are not exactly the architecture's.

    Args:
        component: Whose weights they are.
        missing: Tensors that the library found in no file; it leaves them random or without data.
        unexpected: Tensors of the files that it did not use, without those it declares to be ignored.
        is_encoder: Whether the head of a language model, and counts of positions, may lie there unused.

    Raises:
        ModelFolderError: Naming the first few.
    """
    surplus = [
        name
        for name in unexpected
        if not (is_encoder and (name.startswith(_LANGUAGE_MODEL_HEAD) or name.endswith(_CONSTANT)))
    ]
    for problem, names in (("weights lack", missing), ("architecture has no", surplus)):
        if names:
            first = ", ".join(sorted(names)[:_NUM_NAMES])
            rest = f" and {len(names) - _NUM_NAMES} more" if len(names) > _NUM_NAMES else ""
            raise ModelFolderError(component, f"its {problem} {first}{rest}")


def check_tokenizer(component: str, tokenizer: Any, num_embeddings: int) -> None:
    """Refuses one that cannot pad, or whose tokens its encoder does not know.

    Raises:
        ModelFolderError: Saying which.
    """
    if tokenizer.pad_token is None:
        raise ModelFolderError(component, "has no padding token")
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= num_embeddings:
        raise ModelFolderError(
            component, f"has a token {largest} for an encoder of {num_embeddings} embeddings"
        )


def is_prompt_in_chat(tokenizer: Any) -> bool:
    """Whether the tokenizer's chat template, filled in as a pipeline does it, holds the prompt."""
    text: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": _PROMPT}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=True,
    )
    return _PROMPT in text


def _takes(parameter: inspect.Parameter, value: Any) -> bool:
    default = parameter.default
    if type(value) is type(default) and not isinstance(value, list):
        return True  # several annotations leave out their own default
    if parameter.annotation is not inspect.Parameter.empty:
        return _fits(value, parameter.annotation)
    if default is inspect.Parameter.empty or default is None:
        return True
    if isinstance(default, (list, tuple)):
        items = {type(item) for item in default}
        return isinstance(value, list) and all(
            any(_fits(item, kind) for kind in items or {object}) for item in value
        )
    return _fits(value, type(default))


def _fits(value: Any, annotation: Any) -> bool:
    """Whether a value read from JSON suits an annotation, as far as that can be told."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, choice) for choice in typing.get_args(annotation))
    if origin is typing.Literal:
        return value in typing.get_args(annotation)
    if (origin or annotation) in (list, tuple):
        return isinstance(value, list) and _fit_items(value, typing.get_args(annotation))
    if annotation in (int, float):
        return type(value) in (int, float)
    if annotation in (bool, str, types.NoneType):
        return type(value) is annotation
    return True


def _fit_items(values: list[Any], choices: tuple[Any, ...]) -> bool:
    if len(choices) > 1 and Ellipsis not in choices:
        return len(values) == len(choices) and all(map(_fits, values, choices))
    # Diffusers writes tuple[int] for one of any length.
    return not choices or all(_fits(value, choices[0]) for value in values)
