"""Last stage: the adapter as a file that others can load, and its digest."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from sfumato_diffusion.adapter_metadata import AdapterOrigin, adapter_metadata
from sfumato_diffusion.adapters import save_adapter
from sfumato_diffusion.families.info import FamilyInfo
from sfumato_trainer.events import Artifact, Published
from sfumato_trainer.settings import TrainingPlan
from sfumato_trainer.stages.reporter import Reporter, check_lease
from sfumato_trainer.stages.session import TrainingSession
from sfumato_trainer.stages.train_adapter import adapter_shape


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedFile:
    """A file in the run's work directory, to be stored as a blob by its SHA-256."""

    path: Path
    artifact: Artifact


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedAdapters:
    """`ema` is None when no moving average was kept."""

    adapter: PublishedFile
    ema: PublishedFile | None


def publish_adapter(
    plan: TrainingPlan,
    family: FamilyInfo,
    base_revision: str,
    session: TrainingSession,
    reporter: Reporter,
) -> PublishedAdapters:
    """Write the adapter files and report them. Raises LeaseLostError, OSError, AdapterError."""
    check_lease(reporter)
    directory = plan.work_directory / "published"
    adapter = _publish(
        plan, family, base_revision, session, session.parameters, directory, reporter
    )
    ema = None
    if session.ema is not None:
        ema = _publish(
            plan,
            family,
            base_revision,
            session,
            session.ema.shadows,
            directory / "ema",
            reporter,
        )
    reporter.emit(
        Published(adapter=adapter.artifact, ema_adapter=None if ema is None else ema.artifact)
    )
    return PublishedAdapters(adapter=adapter, ema=ema)


def _publish(
    plan: TrainingPlan,
    family: FamilyInfo,
    base_revision: str,
    session: TrainingSession,
    values: Mapping[str, torch.Tensor],
    directory: Path,
    reporter: Reporter,
) -> PublishedFile:
    settings = plan.settings
    tensors = {name: value.detach().float().cpu() for name, value in values.items()}
    shape = adapter_shape(settings)
    origin = AdapterOrigin(
        title=f"{plan.lineage.dataset} ({family.name})",
        base_model=settings.base_model.reference,
        resolution=settings.resolution,
        steps=session.step,
        num_images=len(plan.samples),
        batch_size=settings.batch_size,
        lineage={
            "dataset": plan.lineage.dataset,
            "dataset_digest": plan.lineage.dataset_digest,
            "family": family.name,
            "base_revision": base_revision,
            "config_digest": settings.digest(),
        },
    )
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "adapter.safetensors"
    metadata = adapter_metadata(family, shape, origin, tensors)
    size_bytes = save_adapter(path, tensors, shape, metadata, failpoint=reporter.failpoint)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return PublishedFile(path=path, artifact=Artifact(digest=digest, size_bytes=size_bytes))
