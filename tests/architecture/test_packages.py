"""The packages that a service asks for before it starts are those that its extra installs."""

import re
import tomllib
from pathlib import Path

from sfumato_diffusion.packages import PACKAGES

PROJECT = Path(__file__).parents[2] / "pyproject.toml"
ELSEWHERE = {"numpy", "pillow"}
"""The datasets service needs them as well."""


def test_workers_need_what_the_extra_installs() -> None:
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extra = project["optional-dependencies"]["torch"]
    names = {re.split(r"[^a-z0-9_-]", requirement)[0] for requirement in extra}
    assert names - ELSEWHERE == set(PACKAGES)
