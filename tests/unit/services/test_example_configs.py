"""The annotated example of each service lists every setting of its section, at its default."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from sfumato_chassis.config import load_config
from sfumato_chassis.serve import SERVICES, all_sections

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("service", SERVICES)
def test_the_example_is_complete_and_shows_the_defaults(service: str) -> None:
    file = ROOT / "services" / service / "config.example.toml"
    sections = all_sections()
    loaded = load_config(sections, file=file, environment={})
    defaults = load_config(sections, file=Path("/dev/null"), environment={})
    listed = tomllib.loads(file.read_text())
    for setting in loaded.settings:
        if setting.section == service:
            assert setting.field in listed[service], setting.field
    for section in sections.values():
        assert loaded.section(section) == defaults.section(section)
