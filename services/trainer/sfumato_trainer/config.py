"""[trainer]: the trainer service's section of the configuration."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerConfig:
    """[trainer]."""


SECTION = TrainerConfig
