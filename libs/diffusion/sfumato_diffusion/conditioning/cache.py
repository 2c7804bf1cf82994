"""One file per conditioning entry, used only when everything that determines it is the same.

An entry is a tuple of tensors, some of which may be None: (mean, std) of latents, or a family's
prompt embedding. The key's record lies in the file's metadata, so a miss can be explained.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from sfumato_diffusion.conditioning.flight_lock import FlightLock
from sfumato_diffusion.conditioning.keys import ConditioningKey, Kind, differing_fields
from sfumato_diffusion.durable_files import Failpoint, no_failpoint
from sfumato_diffusion.safetensors_file import (
    first_non_finite,
    read_safetensors,
    tensors_digest,
    write_safetensors,
)
from sfumato_diffusion.safetensors_header import ADAPTER_LIMITS, SafetensorsError, read_header

logger = logging.getLogger(__name__)

Entry = tuple[torch.Tensor | None, ...]
MissReason = Literal["absent", "unreadable", "other_key", "checksum", "not_finite"]

_FORMAT = "sfumato.conditioning.v1"


class NonFiniteConditioningError(ValueError):
    """An encoder answered NaN or infinity; such an entry is never written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Miss:
    """Why an entry cannot be used."""

    reason: MissReason


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """Whether a key hits and, if not, the first field in which the nearest entry differs.

    `differing_field` is None for a hit, for a damaged entry and for an empty cache.
    """

    hit: bool
    reason: MissReason | None = None
    differing_field: str | None = None


class ConditioningCache:
    """A directory of entries, shared by every run and process on a machine."""

    def __init__(self, directory: Path, *, failpoint: Failpoint = no_failpoint) -> None:
        self._directory = directory
        self._failpoint = failpoint

    def read(self, key: ConditioningKey) -> Entry | Miss:
        """The verified entry. Damage is a miss: logged, never an error, never used."""
        path = self.path(key)
        try:
            tensors, metadata = read_safetensors(path, ADAPTER_LIMITS)
        except FileNotFoundError:
            return Miss(reason="absent")
        except (OSError, SafetensorsError) as error:
            return _damaged(path, "unreadable", str(error))
        if metadata.get("key") != key.canonical() or metadata.get("format") != _FORMAT:
            return _damaged(path, "other_key", "its record is another key's")
        slots = metadata.get("slots", "")
        if metadata.get("checksum") != _checksum(tensors, slots):
            return _damaged(path, "checksum", "its bytes are not those that were written")
        spoiled = first_non_finite(tensors)
        if spoiled is not None:
            return _damaged(path, "not_finite", f"{spoiled} is not finite")
        present: list[bool] = json.loads(slots)
        return tuple(tensors[_slot(index)] if held else None for index, held in enumerate(present))

    def write(self, key: ConditioningKey, entry: Entry) -> None:
        """Durable and atomic. Raises OSError, NonFiniteConditioningError."""
        tensors = {_slot(i): tensor for i, tensor in enumerate(entry) if tensor is not None}
        spoiled = first_non_finite(tensors)
        if spoiled is not None:
            raise NonFiniteConditioningError(f"{key.kind}: {spoiled} is not finite")
        slots = json.dumps([tensor is not None for tensor in entry])
        metadata = {
            "format": _FORMAT,
            "kind": key.kind,
            "key": key.canonical(),
            "slots": slots,
            "checksum": _checksum(tensors, slots),
        }
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_safetensors(path, tensors, metadata, failpoint=self._failpoint)

    def lock(self, key: ConditioningKey) -> FlightLock:
        """The lock under which one process encodes this entry."""
        path = self.path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        return FlightLock(path.with_suffix(".lock"))

    def explain(self, key: ConditioningKey) -> Explanation:
        """Hit, or why not, against the entry that differs in the fewest fields."""
        found = self.read(key)
        if not isinstance(found, Miss):
            return Explanation(hit=True)
        if found.reason != "absent":
            return Explanation(hit=False, reason=found.reason)
        wanted = key.record()
        differences = [differing_fields(wanted, record) for record in self._records(key.kind)]
        nearest = min(differences, key=lambda fields: (len(fields), fields), default=[])
        field = nearest[0] if nearest else None
        return Explanation(hit=False, reason="absent", differing_field=field)

    def path(self, key: ConditioningKey) -> Path:
        """Where the entry of a key lies."""
        return self.path_of_kind(key.kind) / f"{key.digest()}.safetensors"

    def path_of_kind(self, kind: Kind) -> Path:
        """Directory of all entries of a kind."""
        return self._directory / kind

    def _records(self, kind: Kind) -> Iterator[dict[str, Any]]:
        for path in sorted(self.path_of_kind(kind).glob("*.safetensors")):
            try:
                record = json.loads(read_header(path, ADAPTER_LIMITS).metadata["key"])
            except (OSError, SafetensorsError, KeyError, ValueError):
                continue
            if isinstance(record, dict):
                yield record


def obtain(
    cache: ConditioningCache,
    key: ConditioningKey,
    encode: Callable[[], Entry],
    *,
    wait: Callable[[], None],
) -> Entry:
    """An entry that was missing: encoded here, or by another process while this one waited.

    `wait` is called between looks at another process's lock; it sleeps and may raise to give up.
    """
    lock = cache.lock(key)
    while True:
        with lock.attempt() as held:
            found = cache.read(key)
            if not isinstance(found, Miss):
                return found
            if held:
                entry = encode()
                cache.write(key, entry)
                return entry
        wait()


def _slot(index: int) -> str:
    return f"slot_{index}"


def _checksum(tensors: dict[str, torch.Tensor], slots: str) -> str:
    return hashlib.sha256(f"{tensors_digest(tensors)}:{slots}".encode()).hexdigest()


def _damaged(path: Path, reason: MissReason, message: str) -> Miss:
    logger.warning("conditioning entry %s is not used: %s", path.name, message)
    return Miss(reason=reason)
