"""The process that makes pictures: ``python -m sfumato_generator.worker FILE``.

It holds torch and the resident models, takes one generation after another from its service, and ends
when the service is gone.
"""

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from sfumato_chassis import unexpected_errors
from sfumato_chassis.blobs import BlobFolder, digest_of_file
from sfumato_chassis.disk_space import is_disk_full
from sfumato_chassis.errors import JobFailure, Reason
from sfumato_chassis.failpoints import from_environment
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.logging import configure_logging, get_logger, log_context
from sfumato_chassis.worker_session import Work, WorkerLink, WorkerSession
from sfumato_diffusion.adapters import AdapterError, UnsafeAdapterError
from sfumato_diffusion.families.contract import (
    GenerationCancelledError,
    TextToImage,
    UnreadableModelError,
    UnsupportedRequestError,
)
from sfumato_diffusion.model_folder import ModelFolderError, UnsafeWeightsError
from sfumato_generator.plan import AdapterFile, GenerationPlan
from sfumato_generator.progress import StepProgress
from sfumato_generator.recipe import encode_with_recipe
from sfumato_generator.resident_models import ResidentModel, ResidentModels

POLL_SECONDS = 0.1

log = get_logger(__name__)


class GenerationError(Exception):
    """The generation fails for a reason that its caller is told."""

    def __init__(self, reason: Reason, message: str, error_id: str = "", **details: str) -> None:
        super().__init__(message)
        self.failure = JobFailure(
            reason=reason, message=message, error_id=error_id, details=details
        )


class GenerationWorker:
    """Does generations, one at a time."""

    def __init__(self, session: WorkerSession, blobs: BlobFolder, models: ResidentModels) -> None:
        self._session = session
        self._blobs = blobs
        self._models = models

    def do(self, work: Work) -> None:
        """One generation, from its first event to the one that ends it.

        After a drain there is none: the service says what follows.
        """
        try:
            end, data = self._attempt(work)
        except GenerationCancelledError:
            if self._session.command(work.job) != "cancel":
                return
            end, data = "cancelled", {}
        self._session.emit(work.job, work.fence, end, data)

    def _attempt(self, work: Work) -> tuple[str, Mapping[str, Any]]:
        """Makes the pictures; answers the event that ends the generation."""
        plan = GenerationPlan.from_json(work.configuration["plan"])
        began = time.monotonic()
        try:
            model = self._load(work, plan)
            self._generate(work, plan, model, first_image=work.configuration["first_image"])
        except GenerationError as error:
            return "failed", error.failure.to_json()
        except UnsupportedRequestError as error:
            failure = JobFailure(
                reason=Reason.MODEL_UNSUPPORTED,
                message=f"configuration.{error}",
                details={"field": f"configuration.{error.field}"},
            )
            return "failed", failure.to_json()
        except (MemoryError, torch.OutOfMemoryError) as error:
            self._models.clear()
            failure = JobFailure(
                reason=Reason.MEMORY_EXCEEDED,
                message="the device's memory does not suffice",
                error_id=unexpected_errors.note(error, "out of memory"),
            )
            return "failed", failure.to_json()
        except GenerationCancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - the boundary, where it is logged
            self._models.clear()
            told = unexpected_errors.report(error, "unexpected error")
            return "failed", JobFailure.of(told).to_json()
        seconds = time.monotonic() - began
        return "succeeded", {"num_images": plan.configuration.count, "seconds": seconds}

    def _load(self, work: Work, plan: GenerationPlan) -> ResidentModel:
        def on_loading(component: str) -> None:
            self._check_orders(work)
            self._emit(work, "loading", {"component": component})

        self._check_orders(work)
        model, was_resident = self._take_model(plan, on_loading)
        for adapter in plan.adapters:
            self._verify(adapter)
        try:
            model.switch_adapters(plan.adapters, self._blobs.path, on_loading)
        except UnsafeAdapterError as error:
            raise GenerationError(Reason.WEIGHTS_UNSAFE, f"adapter: {error}") from error
        except AdapterError as error:
            raise GenerationError(Reason.ADAPTER_INCOMPATIBLE, f"adapter: {error}") from error
        except BaseException:
            self._models.drop(model)
            raise
        data = {
            "components": model.components(plan.requested_precision),
            "resident": was_resident,
            "model_revision": model.key.revision,
        }
        self._emit(work, "loaded", data)
        return model

    def _take_model(self, plan: GenerationPlan, on_loading: Any) -> tuple[ResidentModel, bool]:
        try:
            return self._models.take(plan, on_loading)
        except UnsafeWeightsError as error:
            raise GenerationError(Reason.WEIGHTS_UNSAFE, f"base model: {error}") from error
        except ModelFolderError as error:
            raise GenerationError(Reason.MODEL_LOAD_FAILED, f"base model: {error}") from error
        except UnreadableModelError as error:
            if is_disk_full(error):
                raise
            told = unexpected_errors.report(error, "the model could not be loaded")
            raise GenerationError(
                Reason.MODEL_LOAD_FAILED,
                f"the base model could not be loaded: {error}",
                error_id=told.error_id,
            ) from error

    def _verify(self, adapter: AdapterFile) -> None:
        """Raises BLOB_CORRUPT for a file that is missing or is not what its digest says."""
        path = self._blobs.path(adapter.digest)
        if not path.is_file() or digest_of_file(path) != adapter.digest:
            raise GenerationError(
                Reason.BLOB_CORRUPT, f"the file of {adapter.name} is missing or damaged"
            )

    def _generate(
        self, work: Work, plan: GenerationPlan, model: ResidentModel, *, first_image: int
    ) -> None:
        """Each image on its own: a batch would change its bytes in some kernels."""
        wanted = plan.configuration
        progress = StepProgress(
            num_images=wanted.count,
            num_steps=wanted.steps,
            first_image=first_image,
            emit=lambda data: self._emit(work, "step", data),
        )
        for index in range(first_image, wanted.count):
            self._check_orders(work)
            seed = wanted.seed + index
            request = TextToImage(
                prompt=wanted.prompt,
                negative_prompt=wanted.negative_prompt,
                width=wanted.width,
                height=wanted.height,
                steps=wanted.steps,
                guidance=wanted.guidance,
                seed=seed,
            )
            try:
                # The pipeline turns floats to bytes with numpy, which can tell when one is no number.
                with np.errstate(invalid="raise"):
                    image = model.family.generate(
                        model.pipeline,
                        request,
                        on_step=progress.for_image(index),
                        cancelled=lambda: self._session.command(work.job) != "none",
                    )
            except FloatingPointError as error:
                raise not_finite(index, "holds values that are no numbers") from error
            if is_black(image):
                raise not_finite(index, "is black throughout")
            self._save(work, plan, model, image, seed=seed)

    def _save(
        self,
        work: Work,
        plan: GenerationPlan,
        model: ResidentModel,
        image: Image.Image,
        *,
        seed: int,
    ) -> None:
        png = encode_with_recipe(
            image,
            plan,
            seed=seed,
            model_revision=model.key.revision,
            scheduler=model.scheduler,
            components=model.components(plan.requested_precision),
        )
        data = {
            "digest": self._blobs.put(png),
            "size_bytes": len(png),
            "width": image.width,
            "height": image.height,
            "seed": seed,
            "model_revision": model.key.revision,
        }
        self._emit(work, "image_saved", data)

    def _emit(self, work: Work, kind: str, data: Mapping[str, Any]) -> None:
        self._session.emit(work.job, work.fence, kind, data)

    def _check_orders(self, work: Work) -> None:
        if self._session.command(work.job) != "none":
            raise GenerationCancelledError


def is_black(image: Image.Image) -> bool:
    """Whether every pixel of every band is 0."""
    return image.convert("RGB").getbbox() is None


def not_finite(index: int, message: str) -> GenerationError:
    """The failure of image ``index``, counted from 0."""
    number = index + 1
    return GenerationError(Reason.OUTPUT_NOT_FINITE, f"image {number} {message}", image=str(number))


def main(configuration_file: Path) -> int:
    """Works until the service sends it away or is gone."""
    configuration = json.loads(configuration_file.read_text(encoding="utf-8"))
    configure_logging(level="info", json_lines=True)
    session = WorkerSession(WorkerLink.of(configuration["link"]), outlives_service=False)
    session.start()
    blobs = BlobFolder(
        Path(configuration["blobs"]), new_name=random_name, failpoint=from_environment(os.environ)
    )
    models = ResidentModels(
        device=configuration["device"], max_models=configuration["max_resident_models"]
    )
    worker = GenerationWorker(session, blobs, models)
    while session.command("") == "none":
        work = session.next_work(POLL_SECONDS)
        if work is not None:
            with log_context(job=work.job):
                worker.do(work)
    session.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
