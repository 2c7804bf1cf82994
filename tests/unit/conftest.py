"""Tiny models, built once per test session."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sfumato_diffusion.families.registry import build_tiny


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Directory of a family's tiny model; never changed by a test."""
    built: dict[str, Path] = {}

    def directory(family: str) -> Path:
        if family not in built:
            built[family] = tmp_path_factory.mktemp("tiny") / family
            build_tiny(family, built[family])
        return built[family]

    return directory
