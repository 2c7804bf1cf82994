"""What a generation is asked to be, what it is once every default is resolved, the sources it names.

The JSON of these records has the field names of ``sfumato.generator.v1``, so that a stored
configuration, an image's recipe and a message all read alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ModelKind = Literal["hub", "directory", "single_file", "gguf"]
AdapterKind = Literal["training_run", "adapter", "upload_digest", "hub"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSource:
    """Where a base model comes from.

    Attributes:
        reference: Hub id, or path as the caller gave it.
        revision: Of a Hub id; None for the default.
    """

    kind: ModelKind
    reference: str
    revision: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For the kinds that can be loaded: a Hub id or a folder."""
        if self.kind != "hub":
            return {self.kind: {"path": self.reference}}
        source = {"id": self.reference}
        return {"hub": source if self.revision is None else {**source, "revision": self.revision}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "ModelSource":
        """The inverse of :meth:`to_json`."""
        if "hub" in data:
            source = data["hub"]
            return cls(kind="hub", reference=source["id"], revision=source.get("revision"))
        return cls(kind="directory", reference=data["directory"]["path"])


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterChoice:
    """An adapter, by where it comes from, and the strength at which it acts.

    Attributes:
        reference: Name of a run or adapter, digest, or Hub id.
    """

    kind: AdapterKind
    reference: str
    weight: float = 1.0

    def to_json(self) -> dict[str, Any]:
        """For the kinds that can be loaded: by run or by name."""
        return {"adapter": {self.kind: self.reference}, "weight": self.weight}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "AdapterChoice":
        """The inverse of :meth:`to_json`."""
        ((kind, reference),) = data["adapter"].items()
        return cls(kind=kind, reference=reference, weight=float(data["weight"]))


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRequest:
    """What a caller asks for. None stands for the server's default."""

    model: ModelSource
    prompt: str
    workflow: str
    family: str | None = None
    negative_prompt: str | None = None
    width: int | None = None
    height: int | None = None
    steps: int | None = None
    guidance: float | None = None
    seed: int | None = None
    count: int | None = None
    adapters: tuple[AdapterChoice, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Configuration:
    """Every default resolved. Image i has seed ``seed + i``.

    Attributes:
        negative_prompt: None where there is none.
    """

    model: ModelSource
    family: str
    prompt: str
    negative_prompt: str | None
    width: int
    height: int
    steps: int
    guidance: float
    seed: int
    count: int
    adapters: tuple[AdapterChoice, ...]
    workflow: str

    def to_json(self) -> dict[str, Any]:
        """The fields of ``GenerationConfiguration``."""
        values: dict[str, Any] = {
            "model": self.model.to_json(),
            "family": self.family,
            "prompt": self.prompt,
            "width": self.width,
            "height": self.height,
            "steps": self.steps,
            "guidance": self.guidance,
            "seed": self.seed,
            "count": self.count,
            "adapters": [adapter.to_json() for adapter in self.adapters],
            self.workflow: {},
        }
        if self.negative_prompt is not None:
            values["negative_prompt"] = self.negative_prompt
        return values

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Configuration":
        """The inverse of :meth:`to_json`."""
        return cls(
            model=ModelSource.from_json(data["model"]),
            family=data["family"],
            prompt=data["prompt"],
            negative_prompt=data.get("negative_prompt"),
            width=data["width"],
            height=data["height"],
            steps=data["steps"],
            guidance=float(data["guidance"]),
            seed=int(data["seed"]),
            count=data["count"],
            adapters=tuple(AdapterChoice.from_json(item) for item in data["adapters"]),
            workflow="text_to_image",
        )
