"""The four stages in order, and how a run ends."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from sfumato_chassis import unexpected_errors
from sfumato_chassis.disk_space import is_disk_full
from sfumato_chassis.errors import DISK_FULL_MESSAGE
from sfumato_diffusion.adapters import AdapterError
from sfumato_diffusion.conditioning.cache import NonFiniteConditioningError
from sfumato_diffusion.families.contract import Family, UnreadableModelError
from sfumato_diffusion.families.info import UnsupportedPrecisionError
from sfumato_diffusion.families.registry import UnknownFamilyError, load_family
from sfumato_diffusion.model_files import ModelNotFoundError, locate_model
from sfumato_diffusion.model_folder import (
    ModelFolderError,
    UnsafeWeightsError,
    max_side,
)
from sfumato_diffusion.randomness import preserved_global_state
from sfumato_diffusion.source_revision import WHOLE_MODEL, source_revision
from sfumato_imaging.errors import ImageError
from sfumato_trainer.events import Cancelled, Failed, Succeeded
from sfumato_trainer.model_fit import check_fit
from sfumato_trainer.settings import SettingsError, TrainingPlan
from sfumato_trainer.stages.cache_conditioning import cache_conditioning
from sfumato_trainer.stages.fetch_samples import BlobPath, fetch_samples
from sfumato_trainer.stages.publish_adapter import PublishedAdapters, publish_adapter
from sfumato_trainer.stages.reporter import (
    EndedEarlyError,
    LeaseLostError,
    Reporter,
    TrainingError,
)
from sfumato_trainer.stages.run_state import run_identity
from sfumato_trainer.stages.train_adapter import Trained, train_adapter

Result = Literal["succeeded", "failed", "cancelled", "drained", "lease_lost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How an attempt ended. After `drained` and `lease_lost` no terminal event was sent."""

    result: Result
    step: int = 0
    published: PublishedAdapters | None = None


def run_training(
    plan: TrainingPlan,
    reporter: Reporter,
    *,
    blob_path: BlobPath,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Run one attempt of a plan, from its newest checkpoint or from the start.

    Known failures, a full disk among them, become one `Failed` event; anything else is raised for
    the worker's process boundary to report. The caller's global random states are as before afterwards.
    """
    with preserved_global_state():
        try:
            return _run(plan, reporter, blob_path, clock)
        except EndedEarlyError as ended:
            if ended.command == "drain":
                return Outcome(result="drained")
            reporter.emit(Cancelled(step=0))
            return Outcome(result="cancelled")
        except LeaseLostError:
            return Outcome(result="lease_lost")
        except _KNOWN as error:
            return _failed(error, plan, reporter)
        except OSError as error:
            if not is_disk_full(error):
                raise
            return _failed(error, plan, reporter)


def _failed(error: Exception, plan: TrainingPlan, reporter: Reporter) -> Outcome:
    error_id = unexpected_errors.note(error, "the attempt failed")
    failure = replace(_failure(error, plan), error_id=error_id)
    reporter.emit(failure)
    return Outcome(result="failed", step=failure.step)


def _run(
    plan: TrainingPlan, reporter: Reporter, blob_path: BlobPath, clock: Callable[[], float]
) -> Outcome:
    started = clock()
    family = _family(plan)
    paths = fetch_samples(plan.samples, blob_path, reporter)
    base = plan.settings.base_model
    directory = locate_model(
        plan.model_location,
        plan.cache_roots,
        info=family.info,
        revision=base.revision,
        allow_download=plan.allow_download,
    )
    _check_fit(plan, family, directory)
    # The denoiser counts too: an adapter belongs to the whole base.
    base_revision = source_revision(
        plan.model_location, plan.cache_roots, revision=base.revision, components=WHOLE_MODEL
    )
    conditioning = cache_conditioning(plan, family, directory, paths, reporter)
    trained = train_adapter(
        plan,
        family,
        directory,
        conditioning,
        run_identity(plan, base_revision),
        reporter,
        clock,
    )
    if trained.command == "drain":
        return Outcome(result="drained", step=trained.session.step)
    if trained.command == "cancel":
        reporter.emit(Cancelled(step=trained.session.step))
        return Outcome(result="cancelled", step=trained.session.step)
    published = publish_adapter(plan, family.info, base_revision, trained.session, reporter)
    reporter.emit(_succeeded(plan, trained, published, seconds=clock() - started))
    return Outcome(result="succeeded", step=trained.session.step, published=published)


def _family(plan: TrainingPlan) -> Family:
    settings = plan.settings
    family = load_family(settings.family)
    family.info.check_precision(settings.compute_precision)
    divisor = family.info.size_divisor
    if settings.resolution % divisor:
        raise TrainingError(
            "RESOLUTION_NOT_MULTIPLE",
            f"resolution {settings.resolution} is not a multiple of {divisor}",
        )
    return family


def _check_fit(plan: TrainingPlan, family: Family, directory: Path) -> None:
    """What a model that has just been fetched says of the settings; of any other it was asked before.

    Raises:
        TrainingError: It has no positions for the resolution, or no layer of a target's name.
        ModelFolderError: The denoiser cannot be loaded.
    """
    longest_side = max_side(directory, family.info)
    try:
        check_fit(plan.settings, family.info, directory, longest_side=longest_side)
    except SettingsError as error:
        code = "RESOLUTION_TOO_LARGE" if error.field == "resolution" else "ADAPTER_REFUSED"
        raise TrainingError(code, str(error)) from error


def _succeeded(
    plan: TrainingPlan, trained: Trained, published: PublishedAdapters, *, seconds: float
) -> Succeeded:
    ema = published.ema
    return Succeeded(
        adapter=published.adapter.artifact,
        ema_adapter=None if ema is None else ema.artifact,
        steps=trained.session.step,
        seconds=seconds,
        stopped_early=trained.session.step < plan.settings.train_steps,
    )


_CODES: tuple[tuple[type[Exception], str], ...] = (
    (UnknownFamilyError, "UNKNOWN_FAMILY"),
    (UnsupportedPrecisionError, "UNSUPPORTED_PRECISION"),
    (ModelNotFoundError, "MODEL_NOT_FOUND"),
    (ImageError, "SAMPLE_UNREADABLE"),
    (NonFiniteConditioningError, "CONDITIONING_NOT_FINITE"),
    (AdapterError, "ADAPTER_REFUSED"),
    (UnreadableModelError, "MODEL_UNREADABLE"),
    (UnsafeWeightsError, "WEIGHTS_UNSAFE"),
    (ModelFolderError, "MODEL_UNREADABLE"),
    (torch.OutOfMemoryError, "OUT_OF_MEMORY"),
    (MemoryError, "OUT_OF_MEMORY"),
)
_KNOWN: tuple[type[Exception], ...] = (TrainingError, *(kind for kind, _ in _CODES))


def _failure(error: Exception, plan: TrainingPlan) -> Failed:
    if is_disk_full(error):
        return Failed(code="DISK_FULL", message=DISK_FULL_MESSAGE, step=0)
    if isinstance(error, TrainingError):
        return Failed(
            code=error.code, message=error.message, step=error.step, samples=error.samples
        )
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    if code == "OUT_OF_MEMORY":
        message = "the memory does not suffice"  # torch's own text names processes of this machine
    else:
        message = str(error).replace(plan.model_location, plan.settings.base_model.reference)
    return Failed(code=code, message=message, step=0)
