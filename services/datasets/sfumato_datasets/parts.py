"""The parts that do the service's work. Each is loaded with its first use, not with the start."""

from functools import cached_property
from typing import TYPE_CHECKING

from sfumato_chassis.platform import Platform
from sfumato_datasets.config import DatasetsConfig

if TYPE_CHECKING:
    from sfumato_datasets.editor import Editor
    from sfumato_datasets.exporter import Exporter
    from sfumato_datasets.imports import Importer
    from sfumato_datasets.reading import Reading


class Parts:
    """What does imports, what changes datasets, and what reads them."""

    def __init__(self, platform: Platform, config: DatasetsConfig) -> None:
        self._platform = platform
        self._config = config

    @cached_property
    def importer(self) -> "Importer":
        """Does imports."""
        from sfumato_datasets.imports import Importer

        return Importer(self._platform, self._config, self.reading)

    @cached_property
    def editor(self) -> "Editor":
        """Changes and removes datasets."""
        from sfumato_datasets.editor import Editor

        return Editor(self._platform, self.reading)

    @cached_property
    def exporter(self) -> "Exporter":
        """Makes archives of versions."""
        from sfumato_datasets.exporter import Exporter

        return Exporter(self._platform, self.reading)

    @cached_property
    def reading(self) -> "Reading":
        """Reads versions."""
        from sfumato_datasets.reading import Reading

        return Reading(self._platform)
