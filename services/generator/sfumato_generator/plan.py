"""A resolved generation with all that its worker needs to begin: files, precision, digests."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sfumato_diffusion.families.info import Precision
from sfumato_generator.configuration import Configuration


@dataclass(frozen=True, kw_only=True, slots=True)
class AdapterFile:
    """An adapter's file among the blobs.

    Attributes:
        name: The adapter's own name.
        digest: ``sha256:`` and 64 hexadecimal digits.
        weight: The strength at which it acts.
    """

    name: str
    digest: str
    size_bytes: int
    media_type: str
    weight: float

    def blob(self) -> dict[str, Any]:
        """The fields of ``BlobRef``."""
        return {
            "digest": self.digest,
            "size_bytes": self.size_bytes,
            "media_type": self.media_type,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationPlan:
    """What a worker does.

    Attributes:
        model_directory: Real folder of the model in the layout of diffusers.
        model_marker: Marker of the weights where the Hub's commit tells it; empty for a folder, whose
            marker is taken when it is loaded.
        requested_precision: As configured; ``precision`` is what engages.
        adapters: In the order of ``configuration.adapters``.
    """

    configuration: Configuration
    model_directory: str
    model_marker: str
    requested_precision: str
    precision: Precision
    adapters: tuple[AdapterFile, ...]

    def to_json(self) -> dict[str, Any]:
        """For the store and the worker."""
        return {
            "configuration": self.configuration.to_json(),
            "model_directory": self.model_directory,
            "model_marker": self.model_marker,
            "requested_precision": self.requested_precision,
            "precision": self.precision,
            "adapters": [asdict(adapter) for adapter in self.adapters],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "GenerationPlan":
        """The inverse of :meth:`to_json`."""
        return cls(
            **{
                **data,
                "configuration": Configuration.from_json(data["configuration"]),
                "adapters": tuple(AdapterFile(**adapter) for adapter in data["adapters"]),
            }
        )
