"""Training state on disk: whole or absent, without pickle, newest by number.

A bundle `checkpoint-<step>/` holds safetensors and JSON; its manifest, written last, lists every
file with size and SHA-256. A bundle that does not match its manifest is walked past.
"""

import dataclasses
import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from sfumato_diffusion.durable_files import (
    Failpoint,
    no_failpoint,
    sync_directory,
    write_file,
)
from sfumato_diffusion.safetensors_file import read_safetensors, write_safetensors
from sfumato_diffusion.safetensors_header import MODEL_LIMITS, SafetensorsError

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"

_RANDOM_RECORD = "record"
_BUNDLE = re.compile(r"checkpoint-(\d{1,9})")
_STAGING_SUFFIX = ".staging"
_OUTDATED_SUFFIX = ".outdated"
_LARGEST_MANIFEST_BYTES = 16 * 2**20


class DamagedCheckpointError(Exception):
    """The bundle is incomplete or its bytes are not those that were written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRecord:
    """The JSON half of a training state: where the run is and what it is.

    `identity` holds the fields in which a resuming run must agree; `build` the library versions
    and thread count for which the bitwise promise holds; `progress` counters and averages.
    """

    run: str
    step: int
    fence: int
    identity: Mapping[str, Any]
    resolved_config: Mapping[str, Any]
    build: Mapping[str, Any]
    progress: Mapping[str, Any]


_RECORD_FIELDS = tuple(field.name for field in dataclasses.fields(CheckpointRecord))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingState:
    """All that a run needs to continue as if it had never stopped. `ema` is None when off."""

    record: CheckpointRecord
    adapter: Mapping[str, torch.Tensor]
    ema: Mapping[str, torch.Tensor] | None
    optimiser: Mapping[str, torch.Tensor]
    optimiser_record: Mapping[str, Any]
    scheduler_record: Mapping[str, Any]
    random: Mapping[str, torch.Tensor]
    random_record: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """`digest` is the SHA-256 of the manifest, in hex."""

    path: Path
    step: int
    size_bytes: int
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundCheckpoint:
    """The newest usable state of a directory and the names of damaged bundles above it."""

    state: TrainingState | None
    path: Path | None
    skipped_damaged: tuple[str, ...]


def save_checkpoint(
    directory: Path, state: TrainingState, *, failpoint: Failpoint = no_failpoint
) -> SavedCheckpoint:
    """Stage beside, fsync every file, manifest last, then rename. Raises OSError."""
    name = f"checkpoint-{state.record.step}"
    directory.mkdir(parents=True, exist_ok=True)
    staging = directory / f".{name}.{uuid.uuid4().hex}{_STAGING_SUFFIX}"
    staging.mkdir()
    try:
        manifest = _write_bundle(staging, state, failpoint)
        failpoint("checkpoint:staged")
        target = directory / name
        _move_aside(target)
        failpoint("checkpoint:before_rename")
        staging.rename(target)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    failpoint("checkpoint:renamed")
    sync_directory(directory)
    _remove_leftovers(directory)
    failpoint("checkpoint:done")
    return SavedCheckpoint(
        path=target,
        step=state.record.step,
        size_bytes=sum(path.stat().st_size for path in target.iterdir()),
        digest=hashlib.sha256(manifest).hexdigest(),
    )


def load_checkpoint(path: Path) -> TrainingState:
    """Verify every file of a bundle against its manifest. Raises DamagedCheckpointError."""
    try:
        manifest = _read_manifest(path)
        for name, entry in manifest["files"].items():
            _verify(path / name, entry)
        return _state_of(path, manifest)
    except (OSError, SafetensorsError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedCheckpointError(f"{path.name}: {error}") from error


def _state_of(path: Path, manifest: Mapping[str, Any]) -> TrainingState:
    record = CheckpointRecord(**{field: manifest[field] for field in _RECORD_FIELDS})
    random, random_metadata = read_safetensors(path / "rng.safetensors", MODEL_LIMITS)
    has_ema = "ema.safetensors" in manifest["files"]
    return TrainingState(
        record=record,
        adapter=_tensors(path / "adapter.safetensors"),
        ema=_tensors(path / "ema.safetensors") if has_ema else None,
        optimiser=_tensors(path / "optimizer.safetensors"),
        optimiser_record=_json(path / "optimizer.json"),
        scheduler_record=_json(path / "scheduler.json"),
        random=random,
        random_record=json.loads(random_metadata[_RANDOM_RECORD]),
    )


def find_latest(directory: Path, *, at_most: int | None = None) -> FoundCheckpoint:
    """The newest bundle, by number, that is whole; damaged ones above it are named."""
    skipped = []
    for step, path in sorted(_bundles(directory), reverse=True):
        if at_most is not None and step > at_most:
            continue
        try:
            state = load_checkpoint(path)
        except DamagedCheckpointError:
            skipped.append(path.name)
            continue
        return FoundCheckpoint(state=state, path=path, skipped_damaged=tuple(skipped))
    return FoundCheckpoint(state=None, path=None, skipped_damaged=tuple(skipped))


def prune_checkpoints(directory: Path, *, run: str, keep_last: int) -> None:
    """Remove all but the newest bundles of this run; another run's are never touched."""
    for _, path in sorted(_bundles(directory), reverse=True)[keep_last:]:
        try:
            owner = _read_manifest(path).get("run")
        except (OSError, ValueError):
            continue
        if owner == run:
            shutil.rmtree(path)


def first_difference(saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> str | None:
    """First field, in the wanted order, in which two identities differ; None when equal."""
    for name in dict.fromkeys([*wanted, *saved]):
        if saved.get(name) != wanted.get(name):
            return name
    return None


def _write_bundle(staging: Path, state: TrainingState, failpoint: Failpoint) -> bytes:
    tensors = {
        "adapter.safetensors": state.adapter,
        "optimizer.safetensors": state.optimiser,
    }
    if state.ema is not None:
        tensors["ema.safetensors"] = state.ema
    records = {
        "optimizer.json": state.optimiser_record,
        "scheduler.json": state.scheduler_record,
    }
    for name, group in tensors.items():
        write_safetensors(staging / name, group, {}, failpoint=failpoint)
    write_safetensors(
        staging / "rng.safetensors",
        state.random,
        {_RANDOM_RECORD: json.dumps(state.random_record)},
        failpoint=failpoint,
    )
    for name, content in records.items():
        write_file(staging / name, [_encode(content)], failpoint=failpoint)
    files = {path.name: _describe(path) for path in sorted(staging.iterdir())}
    fields = {name: getattr(state.record, name) for name in _RECORD_FIELDS}
    manifest = _encode({"schema_version": SCHEMA_VERSION, **fields, "files": files})
    write_file(staging / MANIFEST, [manifest], failpoint=failpoint)
    return manifest


def _bundles(directory: Path) -> list[tuple[int, Path]]:
    if not directory.is_dir():
        return []
    matches = [(_BUNDLE.fullmatch(path.name), path) for path in directory.iterdir()]
    return [(int(match[1]), path) for match, path in matches if match and path.is_dir()]


def _move_aside(target: Path) -> None:
    if target.exists():
        target.rename(target.with_name(f".{target.name}.{uuid.uuid4().hex}{_OUTDATED_SUFFIX}"))


def _remove_leftovers(directory: Path) -> None:
    """What a process that died had staged, and bundles that a new one of their number replaced."""
    for path in directory.iterdir():
        if path.name.startswith(".") and path.suffix in (_STAGING_SUFFIX, _OUTDATED_SUFFIX):
            shutil.rmtree(path, ignore_errors=True)


def _encode(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, indent=1, allow_nan=False).encode()


def _describe(path: Path) -> dict[str, Any]:
    return {"size_bytes": path.stat().st_size, "sha256": _file_digest(path)}


def _verify(path: Path, entry: Mapping[str, Any]) -> None:
    if path.stat().st_size != entry["size_bytes"] or _file_digest(path) != entry["sha256"]:
        raise ValueError(f"{path.name} is not the file that was written")


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_manifest(path: Path) -> dict[str, Any]:
    manifest = path / MANIFEST
    if manifest.stat().st_size > _LARGEST_MANIFEST_BYTES:
        raise ValueError("the manifest is too large")
    record = _json(manifest)
    if record.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(f"schema version {record.get('schema_version')!r}")
    return record


def _json(path: Path) -> dict[str, Any]:
    record = json.loads(path.read_bytes())
    if not isinstance(record, dict):
        raise ValueError(f"{path.name} is not an object")
    return record


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    return read_safetensors(path, MODEL_LIMITS)[0]
