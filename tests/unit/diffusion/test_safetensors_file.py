import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sfumato_diffusion.durable_files import write_file
from sfumato_diffusion.safetensors_file import (
    first_non_finite,
    read_safetensors,
    write_safetensors,
)
from sfumato_diffusion.safetensors_header import (
    ADAPTER_LIMITS,
    HeaderLimits,
    SafetensorsError,
    read_header,
)

TENSORS = {
    "b.weight": torch.arange(6, dtype=torch.float32).reshape(2, 3),
    "a.half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "scalar": torch.tensor(7, dtype=torch.int64),
    "empty": torch.zeros(0, 4),
    "flag": torch.tensor([True, False]),
}


def _same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        left[name].dtype == right[name].dtype and torch.equal(left[name], right[name])
        for name in left
    )


def test_round_trip_also_through_the_library(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    size_bytes = write_safetensors(ours, TENSORS, {"z": "1", "a": "ü"})
    assert ours.stat().st_size == size_bytes
    tensors, metadata = read_safetensors(ours, ADAPTER_LIMITS)
    assert _same(tensors, TENSORS)
    assert metadata == {"z": "1", "a": "ü"}
    assert _same(load_file(ours), TENSORS)
    save_file(TENSORS, theirs, {"k": "v"})
    assert _same(read_safetensors(theirs, ADAPTER_LIMITS)[0], TENSORS)


def test_same_content_same_bytes_in_any_order(tmp_path: Path) -> None:
    first, second = tmp_path / "1", tmp_path / "2"
    write_safetensors(first, TENSORS, {"z": "1", "a": "2"})
    write_safetensors(second, dict(reversed(TENSORS.items())), {"a": "2", "z": "1"})
    assert first.read_bytes() == second.read_bytes()
    assert read_header(first, ADAPTER_LIMITS).data_start % 8 == 0


def _file(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(encoded) if length is None else length
    return size.to_bytes(8, "little") + encoded + data


def _entry(shape: list[Any], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


HOSTILE = {
    "empty file": b"",
    "header longer than the file": _file({}, length=2**40),
    "not json": _file(b"{nonsense"),
    "deep nesting": _file(b"[" * 100_000),
    "not an object": _file([1]),
    "duplicate name": _file(b'{"a":1,"a":1}'),
    "name with a slash": _file({"../a": _entry([1], 0, 4)}, bytes(4)),
    "unknown dtype": _file({"a": _entry([1], 0, 4, "F128")}, bytes(4)),
    "size does not fit the shape": _file({"a": _entry([2], 0, 4)}, bytes(4)),
    "negative size": _file({"a": _entry([-1], 0, -4)}, bytes(4)),
    "boolean size": _file({"a": _entry([True], 0, 4)}, bytes(4)),
    "overlap": _file({"a": _entry([1], 0, 4), "b": _entry([1], 0, 4)}, bytes(4)),
    "gap": _file({"a": _entry([1], 4, 8)}, bytes(8)),
    "bytes left over": _file({"a": _entry([1], 0, 4)}, bytes(5)),
    "truncated": _file({"a": _entry([2], 0, 8)}, bytes(7)),
    "metadata that is no text": _file({"__metadata__": {"a": 1}}),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused(case: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(HOSTILE[case])
    with pytest.raises(SafetensorsError):
        read_safetensors(path, ADAPTER_LIMITS)


def test_limits(tmp_path: Path) -> None:
    path = tmp_path / "many.safetensors"
    write_safetensors(path, {str(i): torch.zeros(1) for i in range(5)}, {})
    assert len(read_header(path, HeaderLimits(header_bytes=1000, num_tensors=5)).tensors) == 5
    for limits in (HeaderLimits(header_bytes=1000, num_tensors=4), HeaderLimits(header_bytes=100)):
        with pytest.raises(SafetensorsError):
            read_header(path, limits)


def test_non_finite_is_found_in_every_float_type() -> None:
    assert first_non_finite(TENSORS) is None
    assert first_non_finite({"ok": torch.ones(1), "bad": torch.tensor([1.0, torch.nan])}) == "bad"
    assert first_non_finite({"bad": torch.tensor([torch.inf], dtype=torch.bfloat16)}) == "bad"


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_file(path, [b"old"])

    def fail(name: str) -> None:
        raise OSError(name)

    with pytest.raises(OSError, match="written"):
        write_file(path, [b"new"], failpoint=fail)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
