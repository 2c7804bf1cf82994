"""A base model's folder in the layout of diffusers, checked without loading it. No torch.

What a library would meet in the middle of a load, as one of many errors, is told here by component and
before a job is made. Layout: https://huggingface.co/docs/diffusers/using-diffusers/other-formats
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sfumato_diffusion.families.info import FamilyInfo
from sfumato_diffusion.safetensors_header import (
    MODEL_LIMITS,
    Header,
    SafetensorsError,
    read_header,
)

INDEX = "model_index.json"
_PICKLES = frozenset({".bin", ".ckpt", ".pt", ".pth"})
_SCHEDULER_NUMBERS = ("base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len")
_VOCABULARIES = frozenset(
    {"tokenizer.json", "vocab.json", "vocab.txt", "spiece.model", "tokenizer.model"}
)


MAX_NAME = 80
"""Characters of a name in a message."""


class ModelFolderError(ValueError):
    """A component is missing, damaged or of another kind. `component` names it."""

    def __init__(self, component: str, problem: str) -> None:
        super().__init__(f"{component}: {problem}")
        self.component = component


class UnsafeWeightsError(ModelFolderError):
    """Weights that are pickled and may hold code, or whose header cannot be believed."""


def check_model_folder(directory: Path, info: FamilyInfo) -> None:
    """Every component that the family needs, and every other that the index names.

    Raises:
        UnsafeWeightsError: Its weights must not be read.
        ModelFolderError: It cannot be loaded.
    """
    index = _read_object(directory / INDEX, INDEX)
    named = tuple(name for name, value in index.items() if _class_of(value) is not None)
    for component in components_of(info):
        if component not in named:
            raise ModelFolderError(component, f"is missing in {INDEX}")
    check_components(directory, info, dict.fromkeys((*components_of(info), *named)))
    denoiser_class = _class_of(index[info.denoiser_component])
    if denoiser_class != info.denoiser_class:
        raise ModelFolderError(
            info.denoiser_component, f"is a {denoiser_class}, not a {info.denoiser_class}"
        )


def components_of(info: FamilyInfo) -> tuple[str, ...]:
    """Names of the folders that a model of the family has."""
    return (*_with_weights(info), *_tokenizers(info), "scheduler")


def check_components(directory: Path, info: FamilyInfo, components: Iterable[str]) -> None:
    """These alone. Raises UnsafeWeightsError and ModelFolderError."""
    with_weights, tokenizers = _with_weights(info), _tokenizers(info)
    for component in components:
        folder = directory / component
        if not _there(folder, Path.is_dir):
            raise ModelFolderError(component[:MAX_NAME], "is missing")
        if component in with_weights:
            _read_object(folder / "config.json", component)
            _check_weights(folder)
            if component == info.denoiser_component:
                _check_positions(directory, info)
        elif component in tokenizers:
            _check_tokenizer(folder)
        elif component == "scheduler":
            _check_scheduler(folder)


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
    layers = list(_linear_layers(directory / info.denoiser_component))
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
    settings = _read_object(directory / component / "config.json", component)
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


def _with_weights(info: FamilyInfo) -> tuple[str, ...]:
    return (info.denoiser_component, *info.text_encoder_components, "vae")


def _tokenizers(info: FamilyInfo) -> tuple[str, ...]:
    return tuple(name.replace("text_encoder", "tokenizer") for name in info.text_encoder_components)


def _linear_layers(folder: Path) -> Iterator[str]:
    for file in _weight_files(folder):
        for name, entry in _header(file).tensors.items():
            if name.endswith(".weight") and len(entry.shape) == 2:
                yield name.removesuffix(".weight")


def _check_weights(folder: Path) -> None:
    files = _weight_files(folder)
    for file in files:
        _header(file)
    if files:
        return
    if any(path.suffix in _PICKLES for path in folder.iterdir()):
        raise UnsafeWeightsError(
            folder.name, "its weights are pickled and may hold code; only safetensors are read"
        )
    raise ModelFolderError(folder.name, "has no weights")


def _weight_files(folder: Path) -> Sequence[Path]:
    """The files that a load without a variant may read. Raises ModelFolderError for a missing shard.

    Beside an index there may be a whole file too; the libraries differ in which of them they read.
    """
    files = {path for path in folder.glob("*.safetensors") if path.name.count(".") == 1}
    for index in folder.glob("*.safetensors.index.json"):
        if index.name.count(".") == 3:
            files |= _shards(index)
    return sorted(files)


def _shards(index: Path) -> set[Path]:
    folder = index.parent
    weight_map = _read_object(index, folder.name).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelFolderError(folder.name, f"{index.name} has no weight_map")
    shards = {folder / str(name) for name in weight_map.values()}
    for shard in sorted(shards):
        if shard.parent != folder or not _there(shard, Path.is_file):
            raise ModelFolderError(folder.name, f"{shard.name[:MAX_NAME]} is missing")
    return shards


def _there(path: Path, kind: Callable[[Path], bool]) -> bool:
    """Whether there is such a file or folder; a name that no file can have is not there."""
    try:
        return kind(path)
    except (OSError, ValueError):
        return False


def _header(file: Path) -> Header:
    if not file.is_file():  # nor a pipe or a device, which would be read for ever
        raise ModelFolderError(file.parent.name, f"{file.name} is no file")
    try:
        return read_header(file, MODEL_LIMITS)
    except SafetensorsError as error:
        raise UnsafeWeightsError(file.parent.name, f"{file.name}: {error}") from error
    except OSError as error:
        raise ModelFolderError(file.parent.name, f"{file.name} cannot be read") from error


def _check_tokenizer(folder: Path) -> None:
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise ModelFolderError(folder.name, "has no vocabulary")


def _check_scheduler(folder: Path) -> None:
    record = _read_object(folder / "scheduler_config.json", folder.name)
    steps = record.get("num_train_timesteps", 1000)
    if type(steps) is not int or steps < 1:
        raise ModelFolderError(folder.name, "num_train_timesteps must be an integer of at least 1")
    shift = record.get("shift", 1.0)
    if type(shift) not in {int, float} or not shift > 0 or not math.isfinite(shift):
        raise ModelFolderError(folder.name, "shift must be a finite number above 0")
    for name in _SCHEDULER_NUMBERS:
        if type(record.get(name, 1)) not in {int, float}:
            raise ModelFolderError(folder.name, f"{name} must be a number")


def _class_of(value: Any) -> str | None:
    """The class in an entry of the index; None for what is no component or an absent one."""
    if isinstance(value, list) and len(value) == 2 and all(isinstance(item, str) for item in value):
        return str(value[1])
    return None


def _read_object(file: Path, component: str) -> dict[str, Any]:
    try:
        if not file.is_file():  # nor a pipe or a device, which would be read for ever
            raise FileNotFoundError(file)
        record = json.loads(
            file.read_text(encoding="utf-8"), parse_constant=_finite, parse_float=_finite
        )
    except FileNotFoundError as error:
        problem = "is missing" if component == file.name else f"{file.name} is missing"
        raise ModelFolderError(component, problem) from error
    except OSError as error:
        raise ModelFolderError(component, f"{file.name} cannot be read") from error
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
