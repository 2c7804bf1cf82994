"""From what a caller asks for to a run with nothing left open."""

from collections.abc import Sequence
from pathlib import Path

from sfumato_chassis.threads import MAX_READERS, Threads
from sfumato_trainer.config import TrainerConfig
from sfumato_trainer.dataset_reader import DatasetReader
from sfumato_trainer.run_request import RunRequest
from sfumato_trainer.runs import check_gated, refuse_misfit, resolve_base, resolve_settings
from sfumato_trainer.storage import Run


class RunResolver:
    """Resolves runs against the models of this machine and the datasets service."""

    def __init__(self, config: TrainerConfig, datasets: DatasetReader, *, data_dir: Path) -> None:
        self._config = config
        self._datasets = datasets
        self._data_dir = data_dir
        self._reading = Threads("read-model", limit=MAX_READERS)

    @property
    def model_roots(self) -> Sequence[Path]:
        """Folders that hold base models."""
        return [self._data_dir / "models", *self._config.model_roots]

    async def resolve(self, asked: RunRequest) -> Run:
        """What a request would become; its job is not known yet.

        Raises:
            InvalidArgument, NotFound, FailedPrecondition, PermissionDenied, Unavailable: See the
                proto.
        """
        base = await self._reading.run(
            resolve_base,
            asked.base,
            asked.family,
            self.model_roots,
            may_download=self._config.allow_download,
        )
        settings = resolve_settings(
            asked.requested, asked.base, base.info, device=self._config.device
        )
        await self._reading.run(refuse_misfit, base, settings)
        await self._reading.run(check_gated, asked.base, base.info)
        version = await self._datasets.resolve(asked.owner, asked.dataset, asked.dataset_version)
        return Run(
            job="",
            owner=asked.owner,
            display_name=asked.display_name,
            base_model=asked.base.message,
            base_path="" if base.path is None else str(base.path),
            settings=settings,
            dataset=version.dataset,
            dataset_version=version.number,
            dataset_digest=version.digest,
            num_samples=version.num_samples,
        )
