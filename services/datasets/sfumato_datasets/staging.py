"""Where imports put files that are theirs only while they run: a folder for each, under its job's name."""

import shutil
from collections.abc import Iterable
from pathlib import Path


class Staging:
    """The folder of all of them, in the data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / "staging"

    def folder(self) -> Path:
        """The folder itself, for unnamed temporary files; made where it is missing."""
        self._folder.mkdir(exist_ok=True)
        return self._folder

    def of_import(self, job: str) -> Path:
        """An import's own folder, which need not be there."""
        return self._folder / job

    def imports(self) -> list[str]:
        """The jobs that have a folder."""
        return [path.name for path in self._folder.iterdir()] if self._folder.is_dir() else []

    def remove(self, jobs: Iterable[str]) -> None:
        """Removes the folders of imports."""
        for job in jobs:
            shutil.rmtree(self.of_import(job), ignore_errors=True)
