"""[generator]: the generator service's section of the configuration."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratorConfig:
    """[generator]."""


SECTION = GeneratorConfig
