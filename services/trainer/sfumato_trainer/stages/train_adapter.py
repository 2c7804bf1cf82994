"""Third stage: the loop over the cached conditioning, its checkpoints and its events."""

import logging
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from sfumato_chassis.disk_space import is_disk_full
from sfumato_chassis.errors import DISK_FULL_MESSAGE
from sfumato_diffusion.adapters import AdapterShape, inject_adapter
from sfumato_diffusion.checkpoint import prune_checkpoints, save_checkpoint
from sfumato_diffusion.conditioning.encode import Conditioning
from sfumato_diffusion.families.contract import Family
from sfumato_diffusion.randomness import seed_global
from sfumato_diffusion.schedule import FlowSchedule, flow_schedule
from sfumato_trainer.events import (
    CheckpointFailed,
    CheckpointSaved,
    Loaded,
    Preparing,
    Progress,
    Warned,
)
from sfumato_trainer.settings import TrainingPlan, TrainingSettings
from sfumato_trainer.stages.reporter import Command, Reporter, check_lease
from sfumato_trainer.stages.run_state import (
    RunIdentity,
    capture_state,
    checkpoint_directory,
    find_resumable,
    restore_session,
)
from sfumato_trainer.stages.session import StepResult, TrainingSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """Where the loop ended and what told it to; `none` is the target reached."""

    session: TrainingSession
    command: Command


def train_adapter(
    plan: TrainingPlan,
    family: Family,
    model_directory: Path,
    conditioning: Conditioning,
    identity: RunIdentity,
    reporter: Reporter,
    clock: Callable[[], float],
) -> Trained:
    """Train to the target total, or until told otherwise.

    Raises TrainingError, LeaseLostError, AdapterError, UnsupportedPrecisionError.
    """
    found = find_resumable(plan)
    session = _open_session(plan, family, model_directory, conditioning, identity, reporter)
    restore_session(session, found, plan, identity, reporter)
    command = _loop(session, plan, identity, reporter, clock)
    return Trained(session=session, command=command)


def adapter_shape(settings: TrainingSettings) -> AdapterShape:
    """The LoRA that the settings ask for."""
    return AdapterShape(
        rank=settings.rank,
        alpha=settings.alpha,
        targets=settings.target_modules,
        dropout=settings.adapter_dropout,
    )


def _open_session(
    plan: TrainingPlan,
    family: Family,
    model_directory: Path,
    conditioning: Conditioning,
    identity: RunIdentity,
    reporter: Reporter,
) -> TrainingSession:
    settings = plan.settings
    reporter.emit(Preparing(stage="load_denoiser", done=0, total=1))
    denoiser = family.load_denoiser(model_directory, precision=settings.compute_precision)
    denoiser.to(torch.device(plan.device))
    # Whatever was drawn before (loading, encoding) must not show in the run.
    seed_global(settings.seed)
    parameters = inject_adapter(denoiser, adapter_shape(settings))
    if settings.gradient_checkpointing:
        family.enable_gradient_checkpointing(denoiser)
    session = TrainingSession(
        plan=plan,
        family=family,
        denoiser=denoiser,
        parameters=parameters,
        schedule=_schedule(settings, family, model_directory, reporter),
        conditioning=conditioning,
    )
    report = conditioning.report
    reporter.emit(
        Loaded(
            precision=settings.compute_precision,
            encoders_loaded=report.encoders_loaded,
            compiled=False,
            base_revision=str(identity.fields["base_revision"]),
            latent_hits=report.hits["latents"],
            latent_misses=report.num_misses("latents"),
            text_hits=report.hits["text"],
            text_misses=report.num_misses("text"),
        )
    )
    return session


def _schedule(
    settings: TrainingSettings, family: Family, model_directory: Path, reporter: Reporter
) -> FlowSchedule:
    shift = settings.flow_shift
    schedule = flow_schedule(
        family.load_scheduler(model_directory),
        family.info.training.flow_shift if shift is None else shift,
        mu=family.info.training.flow_shift_mu,
    )
    if schedule.not_dynamic:
        reporter.emit(
            Warned(
                code="FLOW_SHIFT_NOT_DYNAMIC",
                text="the scheduler has no dynamic shift, so flow_shift is 1.0",
            )
        )
    return schedule


def _loop(
    session: TrainingSession,
    plan: TrainingPlan,
    identity: RunIdentity,
    reporter: Reporter,
    clock: Callable[[], float],
) -> Command:
    total = plan.settings.train_steps
    first_step, started = session.step, clock()
    num_samples = 0
    command: Command = "none"
    while session.step < total:
        result = session.train_step(reporter.failpoint)
        num_samples += result.num_samples
        seconds = max(clock() - started, 1e-9)
        steps_left = total - session.step
        reporter.emit(
            _progress(
                session,
                plan,
                result,
                samples_per_second=num_samples / seconds,
                eta_seconds=steps_left * seconds / (session.step - first_step),
            )
        )
        reporter.failpoint("train_adapter:step")
        command = reporter.command()
        if command != "none" and steps_left:
            _checkpoint(session, plan, identity, reporter)
            return command
        if session.step % plan.settings.save_steps == 0 or not steps_left:
            _checkpoint(session, plan, identity, reporter)
    return "none" if command in ("none", "stop") else command


def _progress(
    session: TrainingSession,
    plan: TrainingPlan,
    result: StepResult,
    *,
    samples_per_second: float,
    eta_seconds: float,
) -> Progress:
    return Progress(
        step=session.step,
        total=plan.settings.train_steps,
        epoch=session.sampler.epoch,
        loss=result.loss,
        average_loss=result.average_loss,
        learning_rate=result.learning_rate,
        gradient_norm=result.gradient_norm,
        samples_per_second=samples_per_second,
        peak_memory_bytes=_peak_memory_bytes(torch.device(plan.device)),
        eta_seconds=eta_seconds,
    )


def _checkpoint(
    session: TrainingSession, plan: TrainingPlan, identity: RunIdentity, reporter: Reporter
) -> None:
    """Save and prune; a full disk is reported and the run goes on with the older ones."""
    check_lease(reporter)
    directory = checkpoint_directory(plan)
    try:
        saved = save_checkpoint(
            directory, capture_state(session, plan, identity), failpoint=reporter.failpoint
        )
        prune_checkpoints(directory, run=plan.run, keep_last=plan.settings.keep_last)
    except OSError as error:
        logger.warning("checkpoint not written", exc_info=error)
        full = is_disk_full(error)
        message = DISK_FULL_MESSAGE if full else "the checkpoint could not be written"
        reporter.emit(CheckpointFailed(step=session.step, message=message))
        return
    reporter.emit(
        CheckpointSaved(step=saved.step, size_bytes=saved.size_bytes, digest=saved.digest)
    )


def _peak_memory_bytes(device: torch.device) -> int:
    """Peak of the GPU's allocations where one is used, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
