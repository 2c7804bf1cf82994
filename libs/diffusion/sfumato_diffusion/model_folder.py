"""A base model's folder in the layout of diffusers, checked without loading it. No torch.

What a library would meet in the middle of a load, as one of many errors, is told here by component and
before a job is made. Layout: https://huggingface.co/docs/diffusers/using-diffusers/other-formats
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from sfumato_diffusion.families.info import FamilyInfo, MatchingSizes
from sfumato_diffusion.safetensors_header import (
    MODEL_LIMITS,
    Header,
    SafetensorsError,
    read_header,
)

INDEX = "model_index.json"
_MAX_NAME_CHARACTERS = 80
"""Of what a file names, which may be anything."""
_MAX_PROBLEM_CHARACTERS = 400
_PICKLES = frozenset({".bin", ".ckpt", ".pt", ".pth"})
_VOCABULARIES = frozenset(
    {"tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model"}
)


class ModelFolderError(ValueError):
    """A component is missing, damaged or of another kind.

    Attributes:
        component: Its name, or that of the index.
        reason: What callers are told by name.
    """

    reason: ClassVar[Literal["MODEL_UNSUPPORTED", "WEIGHTS_UNSAFE"]] = "MODEL_UNSUPPORTED"

    def __init__(self, component: str, problem: str) -> None:
        self.component = component[:_MAX_NAME_CHARACTERS]
        super().__init__(f"{self.component}: {problem[:_MAX_PROBLEM_CHARACTERS]}")


class MissingPartError(ModelFolderError):
    """A file or folder is not there, as after a download that was interrupted."""


class UnsafeWeightsError(ModelFolderError):
    """Weights that are pickled and may hold code, or whose header cannot be believed."""

    reason = "WEIGHTS_UNSAFE"


def read_index(directory: Path) -> Mapping[str, Any]:
    """What `model_index.json` says. Raises ModelFolderError."""
    return _read_object(directory / INDEX, INDEX)


def read_settings(directory: Path, component: str) -> Mapping[str, Any]:
    """A component's configuration, which a tokenizer may lack. Raises ModelFolderError."""
    name = "config.json"
    if component == "scheduler":
        name = "scheduler_config.json"
    elif component.startswith("tokenizer"):
        name = "tokenizer_config.json"
        if not os.path.lexists(directory / component / name):
            return {}
    return _read_object(directory / component / name, component)


def component_class(directory: Path, component: str) -> str:
    """Name of the class that the index gives a component. Raises ModelFolderError."""
    entry = _class_of(read_index(directory).get(component))
    if entry is None:
        raise ModelFolderError(component, f"is missing in {INDEX}")
    return entry[1]


def components_of(info: FamilyInfo) -> tuple[str, ...]:
    """Names of the folders that a model of the family has."""
    tokenizers = (tokenizer_of(encoder) for encoder in info.text_encoder_components)
    return (*with_weights(info), *tokenizers, "scheduler")


def with_weights(info: FamilyInfo) -> tuple[str, ...]:
    """Names of those that hold weights."""
    return (info.denoiser_component, *info.text_encoder_components, "vae")


def tokenizer_of(encoder: str) -> str:
    """Name of a text encoder's tokenizer."""
    return encoder.replace("text_encoder", "tokenizer")


def check_model_folder(directory: Path, info: FamilyInfo) -> None:
    """Every component that the family needs, and every other that the index names.

    Raises:
        MissingPartError: Something is not there.
        UnsafeWeightsError: Its weights must not be read.
        ModelFolderError: It cannot be loaded.
    """
    index = read_index(directory)
    named = {name: entry for name, value in index.items() if (entry := _class_of(value))}
    for component in components_of(info):
        if component not in named:
            raise ModelFolderError(component, f"is missing in {INDEX}")
        _check_class(component, named[component], info)
    check_components(directory, info, dict.fromkeys((*components_of(info), *named)))
    for sizes in info.sizes:
        _check_sizes(directory, sizes)


def check_components(directory: Path, info: FamilyInfo, components: Iterable[str]) -> None:
    """These alone. Raises MissingPartError, UnsafeWeightsError and ModelFolderError."""
    for component in components:
        folder = directory / component
        if not _there(folder, Path.is_dir):
            raise MissingPartError(component, "is missing")
        if component not in components_of(info):
            continue
        settings = read_settings(directory, component)
        _check_settings(component, settings, info)
        if component in info.text_encoder_components:
            _check_redirections(folder, settings)
        if component in with_weights(info):
            _check_weights(folder, _stem(component, info))
        elif component == "scheduler":
            _check_scheduler(settings)
        else:
            _check_tokenizer(folder, settings, info)
        if component == info.denoiser_component:
            _check_positions(directory, info)


def max_side(directory: Path, info: FamilyInfo) -> int:
    """Longest side in pixels for which the denoiser has positions. Raises ModelFolderError."""
    positions = _positions(directory, info)
    if positions is None:
        return info.maximum_side
    return min(info.maximum_side, min(positions[1:]) * info.size_divisor)


def unmatched_targets(directory: Path, info: FamilyInfo, targets: Sequence[str]) -> Sequence[str]:
    """Those of `targets` that are the name, or the end of the name, of no linear layer.

    Raises ModelFolderError.
    """
    component = info.denoiser_component
    layers = list(_linear_layers(directory / component, _stem(component, info)))
    return [
        target
        for target in targets
        if not any(layer == target or layer.endswith(f".{target}") for layer in layers)
    ]


def _check_positions(directory: Path, info: FamilyInfo) -> None:
    positions = _positions(directory, info)
    # Position 0 is for padding, and the picture takes the one after the prompt.
    if positions is not None and positions[0] < info.prompt_length + 2:
        raise ModelFolderError(
            info.denoiser_component,
            f"{info.positions_setting} is too short for prompts of {info.prompt_length} tokens",
        )


def _positions(directory: Path, info: FamilyInfo) -> list[int] | None:
    """How many the denoiser has along the prompt, down and across; None where its settings do not tell."""
    if info.positions_setting is None:
        return None
    component = info.denoiser_component
    settings = read_settings(directory, component)
    if info.positions_setting not in settings:
        return None  # the library's own default, which is the published model's
    lengths = settings[info.positions_setting]
    if (
        not isinstance(lengths, list)
        or len(lengths) != 3
        or not all(type(length) is int and length > 0 for length in lengths)
    ):
        raise ModelFolderError(
            component, f"{info.positions_setting} is not a list of three lengths"
        )
    return lengths


def _class_of(value: Any) -> tuple[str, str] | None:
    """Library and class in an entry of the index; None for what is no component or an absent one."""
    if isinstance(value, list) and len(value) == 2 and all(isinstance(item, str) for item in value):
        return value[0], value[1]
    return None


def expected_class(component: str, info: FamilyInfo) -> str | None:
    """The one class of diffusers that will do; None where any of transformers may."""
    return {
        info.denoiser_component: info.denoiser_class,
        "vae": info.vae_class,
        "scheduler": info.scheduler_class,
    }.get(component)


def _check_class(component: str, entry: tuple[str, str], info: FamilyInfo) -> None:
    library, name = entry
    expected = expected_class(component, info)
    if expected is not None and name != expected:
        raise ModelFolderError(component, f"is a {name[:_MAX_NAME_CHARACTERS]}, not a {expected}")
    owner = "transformers" if expected is None else "diffusers"
    if library != owner:
        raise ModelFolderError(component, f"is of {library[:_MAX_NAME_CHARACTERS]}, not of {owner}")


def _check_settings(component: str, settings: Mapping[str, Any], info: FamilyInfo) -> None:
    expected = expected_class(component, info)
    if expected is not None:
        _check_class(component, ("diffusers", str(settings.get("_class_name", expected))), info)
    for number in info.numbers:
        if number.component == component and (problem := number.problem(settings)):
            raise ModelFolderError(component, problem)


def _check_redirections(folder: Path, settings: Mapping[str, Any]) -> None:
    """Nothing that makes transformers read other weights than those that are checked."""
    if settings.get("transformers_weights") is not None:
        raise ModelFolderError(folder.name, "transformers_weights names other weights than its own")
    if os.path.lexists(folder / "adapter_config.json"):
        raise ModelFolderError(folder.name, "adapter_config.json names other weights than its own")


def _check_scheduler(settings: Mapping[str, Any]) -> None:
    # The pipelines divide by their difference; the values are the library's defaults.
    if settings.get("base_image_seq_len", 256) == settings.get("max_image_seq_len", 4096):
        raise ModelFolderError("scheduler", "base_image_seq_len and max_image_seq_len are the same")
    if settings.get("stochastic_sampling"):
        raise ModelFolderError("scheduler", "stochastic_sampling draws noise that no seed decides")


def _check_sizes(directory: Path, sizes: MatchingSizes) -> None:
    component, name = sizes.first
    size = read_settings(directory, component).get(name)
    other, other_name = sizes.second
    other_size = read_settings(directory, other).get(other_name)
    # What is left to a library's default is known to that library alone.
    if type(size) is type(other_size) is int and size != sizes.factor * other_size:
        told = f"{name} is {size}, which does not fit the {other} with {other_name} {other_size}"
        raise ModelFolderError(component, told)


def _stem(component: str, info: FamilyInfo) -> str:
    """Name of the files of weights that the component's library reads."""
    return "diffusion_pytorch_model" if expected_class(component, info) else "model"


def _linear_layers(folder: Path, stem: str) -> Iterator[str]:
    for header in _headers(folder, stem).values():
        for name, entry in header.tensors.items():
            if name.endswith(".weight") and len(entry.shape) == 2:
                yield name.removesuffix(".weight")


def _check_weights(folder: Path, stem: str) -> None:
    headers = _headers(folder, stem)
    if headers:
        if not any(header.tensors for header in headers.values()):
            raise ModelFolderError(folder.name, "its weights hold no tensors")
        return
    try:
        is_pickled = any(path.suffix in _PICKLES for path in folder.iterdir())
    except OSError as error:
        raise ModelFolderError(folder.name, "cannot be read") from error
    if is_pickled:
        raise UnsafeWeightsError(
            folder.name, "its weights are pickled and may hold code; only safetensors are read"
        )
    raise MissingPartError(folder.name, f"has no weights: {stem}.safetensors is missing")


def _headers(folder: Path, stem: str) -> Mapping[Path, Header]:
    """Of the files that a load without a variant may read, and that are named as it expects.

    Beside an index there may be a whole file too; the libraries differ in which of them they read.
    """
    headers = {}
    whole = folder / f"{stem}.safetensors"
    if os.path.lexists(whole):
        headers[whole] = _header(whole)
    index = folder / f"{stem}.safetensors.index.json"
    if os.path.lexists(index):
        shards = _shards(index)
        headers |= {shard: _header(shard) for shard in sorted(set(shards.values()))}
        for name, shard in shards.items():
            if name not in headers[shard].tensors:
                told = f"{shard.name} lacks {name[:_MAX_NAME_CHARACTERS]}, which {index.name} names"
                raise ModelFolderError(folder.name, told)
    return headers


def _shards(index: Path) -> Mapping[str, Path]:
    """File of each tensor. Raises MissingPartError and ModelFolderError."""
    folder = index.parent
    record = _read_object(index, folder.name)
    for key in ("metadata", "weight_map"):
        if not isinstance(record.get(key), dict):
            raise ModelFolderError(folder.name, f"{index.name} has no {key}")
    weight_map = record["weight_map"]
    if not weight_map:
        raise ModelFolderError(folder.name, f"{index.name} names no weights")
    shards = {name: folder / str(file) for name, file in weight_map.items()}
    for shard in sorted(set(shards.values())):
        if shard.parent != folder or not _there(shard, Path.is_file):
            raise MissingPartError(folder.name, f"{shard.name[:_MAX_NAME_CHARACTERS]} is missing")
    return shards


def _there(path: Path, kind: Callable[[Path], bool]) -> bool:
    """Whether there is such a file or folder; a name that no file can have is not there."""
    try:
        return kind(path)
    except (OSError, ValueError):
        return False


def _header(file: Path) -> Header:
    if not _there(file, Path.exists):  # a link into a cache that was cleared
        raise MissingPartError(file.parent.name, f"{file.name} is missing")
    if not _there(file, Path.is_file):  # nor a pipe or a device, which would be read for ever
        raise ModelFolderError(file.parent.name, f"{file.name} is no file")
    try:
        return read_header(file, MODEL_LIMITS)
    except SafetensorsError as error:
        raise UnsafeWeightsError(file.parent.name, f"{file.name}: {error}") from error
    except OSError as error:
        raise ModelFolderError(file.parent.name, f"{file.name} cannot be read") from error


def _check_tokenizer(folder: Path, settings: Mapping[str, Any], info: FamilyInfo) -> None:
    if not any(_there(folder / name, Path.is_file) for name in _VOCABULARIES):
        raise MissingPartError(folder.name, "has no vocabulary")
    if settings.get("pad_token", "") is None:
        raise ModelFolderError(folder.name, "has no padding token")
    if info.chat_template:
        template = settings.get("chat_template")
        file = folder / "chat_template.jinja"
        if _there(file, Path.is_file):  # which the library prefers
            template = _read_bytes(file, folder.name).strip()
        if template is None:
            raise MissingPartError(folder.name, "has no chat template")
        if not template:
            raise ModelFolderError(folder.name, "its chat template is empty")


def _read_bytes(file: Path, component: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ModelFolderError(component, f"{file.name} cannot be read") from error


def _read_object(file: Path, component: str) -> dict[str, Any]:
    if not _there(file, Path.is_file):  # nor a pipe or a device, which would be read for ever
        problem = "is missing" if component == file.name else f"{file.name} is missing"
        raise MissingPartError(component, problem)
    try:
        text = _read_bytes(file, component).decode("utf-8")
        record = json.loads(text, parse_constant=_finite, parse_float=_finite)
    except ModelFolderError:
        raise
    except (ValueError, RecursionError) as error:
        raise ModelFolderError(component, f"{file.name} is not JSON with finite numbers") from error
    if not isinstance(record, dict):
        raise ModelFolderError(component, f"{file.name} is not an object")
    return record


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
