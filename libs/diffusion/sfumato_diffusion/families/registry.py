"""The families that exist: one folder beside this file is one family.

`list_families` reads each folder's `info.py` only, which imports no torch; `load_family` and
`build_tiny` import the numeric half of one family when it is asked for.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from sfumato_diffusion.families.info import FamilyInfo

if TYPE_CHECKING:
    from sfumato_diffusion.families.contract import Family


class UnknownFamilyError(LookupError):
    """No family of that name; the message lists those that exist."""


@functools.cache
def _folders() -> dict[str, str]:
    """Family name -> name of its folder, in order of the folders' names."""
    here = Path(__file__).parent
    folders = sorted(path.parent.name for path in here.glob("*/info.py"))
    return {_info(folder).name: folder for folder in folders}


def _info(folder: str) -> FamilyInfo:
    info: FamilyInfo = importlib.import_module(f"{__package__}.{folder}.info").INFO
    return info


def list_families() -> tuple[FamilyInfo, ...]:
    """Every family, by name."""
    return tuple(family_info(name) for name in sorted(_folders()))


def family_info(name: str) -> FamilyInfo:
    """Raises UnknownFamilyError."""
    return _info(_folder(name))


def load_family(name: str) -> Family:
    """The numeric half of a family; imports torch. Raises UnknownFamilyError."""
    family: Family = importlib.import_module(f"{__package__}.{_folder(name)}.family").FAMILY
    return family


def build_tiny(family: str, directory: Path, seed: int = 0) -> None:
    """Write a complete, random, seeded model of at most about 2 MB into `directory`.

    It loads through the same `from_pretrained` as the real one; the same seed gives the same
    bytes in every process. Raises UnknownFamilyError.
    """
    importlib.import_module(f"{__package__}.{_folder(family)}.tiny").build(Path(directory), seed)


def _folder(name: str) -> str:
    folders = _folders()
    if name not in folders:
        raise UnknownFamilyError(f"no family {name!r}; known: {', '.join(sorted(folders))}")
    return folders[name]
