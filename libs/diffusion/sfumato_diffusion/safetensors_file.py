"""safetensors files, written so that the same tensors give the same bytes, and read with checks.

The library's own writer neither fsyncs nor orders metadata.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from sfumato_diffusion.durable_files import Failpoint, no_failpoint, write_file
from sfumato_diffusion.safetensors_header import (
    HeaderLimits,
    SafetensorsError,
    TensorEntry,
    read_header,
)

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
    dtype = _DTYPES[entry.dtype]
    if entry.start == entry.end:
        return torch.empty(entry.shape, dtype=dtype)
    raw = torch.frombuffer(
        data, dtype=torch.uint8, count=entry.end - entry.start, offset=entry.start
    )
    return raw.clone().view(dtype).reshape(entry.shape)
