"""[generator]: the generator service's section of the configuration."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from sfumato_chassis.config import MAX_RETENTION_HOURS, at_least, device_field, one_of
from sfumato_diffusion.families.info import Precision


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratorConfig:
    """[generator].

    Attributes:
        model_roots: Folders on the server that hold base models; ``<data_dir>/models`` always is one.
        device: Where pictures are made: ``cpu`` or ``cuda:<n>``. One generation at a time.
        precision: ``fp32``, ``bf16``, ``fp16``, or ``auto``: fp32 on a CPU, bf16 elsewhere.
        max_resident_models: Models kept between generations; the least recently used leaves first.
        idle_unload_seconds: An idle worker leaves the device after this long; 0 lets it stay.
        max_queued_generations: More are refused with QUEUE_FULL.
        generation_retention_hours: How long a generation's record is kept after its end. Its images
            stay in the gallery.
    """

    model_roots: tuple[Path, ...] = ()
    device: str = device_field()
    precision: str = one_of("auto", *get_args(Precision), default="auto")
    max_resident_models: int = at_least(1, 1)
    idle_unload_seconds: float = at_least(0, 600.0)
    max_queued_generations: int = at_least(0, 100)
    generation_retention_hours: float = at_least(0, 24.0, at_most=MAX_RETENTION_HOURS)


SECTION = GeneratorConfig
