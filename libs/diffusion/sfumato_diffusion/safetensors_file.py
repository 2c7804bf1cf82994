"""safetensors files, written so that the same tensors give the same bytes, and read with checks.

The library's own writer neither fsyncs nor orders metadata; its reader trusts the header's
size. Format: https://github.com/huggingface/safetensors#format
"""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sfumato_diffusion.durable_files import Failpoint, no_failpoint, write_file

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
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
    """Where a tensor lies: byte offsets into the file's data section."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """Parsed and checked header. `data_start` is the offset of the data section in the file."""

    metadata: Mapping[str, str]
    tensors: Mapping[str, TensorEntry]
    data_start: int


def write_safetensors(
    path: Path,
    tensors: Mapping[str, torch.Tensor],
    metadata: Mapping[str, str],
    *,
    failpoint: Failpoint = no_failpoint,
) -> int:
    """Write durably and atomically; returns the size in bytes.

    Tensors are ordered by element size, then name, so that each is aligned to its elements.
    """
    return write_file(path, serialise(tensors, metadata), failpoint=failpoint)


def serialise(tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> Iterator[bytes]:
    """The file's bytes in pieces: header first, then each tensor."""
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))}
    offset = 0
    for name, tensor in ordered:
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)
    yield len(encoded).to_bytes(8, "little") + encoded
    for _, tensor in ordered:
        yield tensor_bytes(tensor)


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    """Raw little-endian bytes of a tensor."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 in hex over names, dtypes, shapes and bytes, in order of name."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name}:{_NAMES[tensor.dtype]}:{list(tensor.shape)};".encode())
        digest.update(tensor_bytes(tensor))
    return digest.hexdigest()


def read_header(path: Path, limits: HeaderLimits) -> Header:
    """Check a header before any library reads the file. Raises SafetensorsError or OSError."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= min(limits.header_bytes, size_bytes - 8):
            raise SafetensorsError(f"header of {length} bytes in a file of {size_bytes}")
        encoded = file.read(length)
    return _parse_header(encoded, size_bytes - 8 - length, limits)


def read_safetensors(
    path: Path, limits: HeaderLimits
) -> tuple[dict[str, torch.Tensor], Mapping[str, str]]:
    """All tensors and the metadata. Raises SafetensorsError or OSError."""
    header = read_header(path, limits)
    with path.open("rb") as file:
        file.seek(header.data_start)
        data = bytearray(file.read())
    expected = max((entry.end for entry in header.tensors.values()), default=0)
    if len(data) != expected:
        raise SafetensorsError(f"{len(data)} bytes of data instead of {expected}")
    tensors = {name: _tensor(data, entry) for name, entry in header.tensors.items()}
    return tensors, header.metadata


def first_non_finite(tensors: Mapping[str, torch.Tensor]) -> str | None:
    """Name of a tensor that holds NaN or infinity; None when all are finite."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor.float()).all():
            return name
    return None


def _tensor(data: bytearray, entry: TensorEntry) -> torch.Tensor:
    if entry.start == entry.end:
        return torch.empty(entry.shape, dtype=entry.dtype)
    raw = torch.frombuffer(
        data, dtype=torch.uint8, count=entry.end - entry.start, offset=entry.start
    )
    return raw.clone().view(entry.dtype).reshape(entry.shape)


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
        dtype = _DTYPES[record["dtype"]]
        shape = tuple(record["shape"])
        start, end = record["data_offsets"]
    except (KeyError, TypeError, ValueError) as error:
        raise SafetensorsError(f"entry of {name}") from error
    numbers = (*shape, start, end)
    if not all(type(number) is int and number >= 0 for number in numbers):
        raise SafetensorsError(f"numbers of {name}")
    if end - start != math.prod(shape) * dtype.itemsize:
        raise SafetensorsError(f"size of {name}")
    return TensorEntry(dtype=dtype, shape=shape, start=start, end=end)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise SafetensorsError("a name appears twice in the header")
    return record
