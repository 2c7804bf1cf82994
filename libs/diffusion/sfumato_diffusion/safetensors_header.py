"""Headers of safetensors files, checked before anything of them is believed. No torch.

The library's own reader trusts the header's size. Format:
https://github.com/huggingface/safetensors#format
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ITEM_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
"""Bytes of one element, by the format's name of the type."""

_TENSOR_NAME = re.compile(r"[A-Za-z0-9_.\-]{1,512}")


class SafetensorsError(ValueError):
    """The file is not a safetensors file that this project accepts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HeaderLimits:
    """What a header may claim before anything of it is believed."""

    header_bytes: int
    num_tensors: int = 20_000


ADAPTER_LIMITS = HeaderLimits(header_bytes=4 * 2**20)
MODEL_LIMITS = HeaderLimits(header_bytes=16 * 2**20)


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorEntry:
    """The format's name of the type, and where the tensor lies: offsets into the data section."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """Parsed and checked header. `data_start` is the offset of the data section in the file."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorEntry]
    data_start: int


def read_header(path: Path, limits: HeaderLimits) -> Header:
    """Check a header before any library reads the file. Raises SafetensorsError or OSError."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(limits.header_bytes, size_bytes - 8):
            raise SafetensorsError(f"header of {length} bytes in a file of {size_bytes}")
        encoded = file.read(length)
    return _parse_header(encoded, size_bytes - 8 - length, limits)


def _parse_header(encoded: bytes, data_bytes: int, limits: HeaderLimits) -> Header:
    try:
        record = json.loads(encoded, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise SafetensorsError("the header is not JSON") from error
    if not isinstance(record, dict):
        raise SafetensorsError("the header is not an object")
    metadata = record.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise SafetensorsError("metadata is not text")
    if len(record) > limits.num_tensors:
        raise SafetensorsError(f"{len(record)} tensors, more than {limits.num_tensors}")
    tensors = {name: _parse_entry(name, entry) for name, entry in record.items()}
    end = 0
    for entry in sorted(tensors.values(), key=lambda entry: (entry.start, entry.end)):
        if entry.start != end:
            raise SafetensorsError("tensors overlap or leave gaps")
        end = entry.end
    if end != data_bytes:
        raise SafetensorsError(f"the header describes {end} bytes of {data_bytes}")
    return Header(metadata=metadata, tensors=tensors, data_start=8 + len(encoded))


def _parse_entry(name: str, record: Any) -> TensorEntry:
    if not _TENSOR_NAME.fullmatch(name):
        raise SafetensorsError(f"tensor name {name[:64]!r}")
    try:
        dtype = str(record["dtype"])
        item_bytes = ITEM_BYTES[dtype]
        shape = tuple(record["shape"])
        start, end = record["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise SafetensorsError(f"entry of {name}") from error
    numbers = (*shape, start, end)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise SafetensorsError(f"numbers of {name}")
    if end - start != math.prod(shape) * item_bytes:
        raise SafetensorsError(f"size of {name}")
    return TensorEntry(dtype=dtype, shape=shape, start=start, end=end)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise SafetensorsError("a name appears twice in the header")
    return record
