"""From a session to a checkpoint and back, and whether a checkpoint belongs to a run."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from sfumato_diffusion.checkpoint import (
    CheckpointRecord,
    FoundCheckpoint,
    TrainingState,
    find_latest,
    first_difference,
)
from sfumato_diffusion.conditioning.plan import device_class
from sfumato_diffusion.ema import MovingAverage
from sfumato_trainer.events import Resumed, Warned
from sfumato_trainer.settings import TrainingPlan
from sfumato_trainer.stages.reporter import Reporter, TrainingError
from sfumato_trainer.stages.session import TrainingSession

_LIBRARIES = ("torch", "diffusers", "transformers", "peft", "numpy", "pillow")


@dataclass(frozen=True, kw_only=True, slots=True)
class RunIdentity:
    """What a checkpoint must agree with to be continued, and on which build it was made."""

    fields: Mapping[str, Any]
    build: Mapping[str, Any]


def run_identity(plan: TrainingPlan, base_revision: str) -> RunIdentity:
    """Fields in the order in which a first difference is named."""
    settings = plan.settings.identity()
    first = {
        "family": settings.pop("family"),
        "base_model": settings.pop("base_model"),
        "base_revision": base_revision,
        "dataset_digest": plan.lineage.dataset_digest,
    }
    build = {name: metadata.version(name) for name in _LIBRARIES}
    build["num_threads"] = str(torch.get_num_threads())
    build["device_class"] = device_class(torch.device(plan.device))
    return RunIdentity(fields=first | settings, build=build)


def capture_state(
    session: TrainingSession, plan: TrainingPlan, identity: RunIdentity
) -> TrainingState:
    """Everything the next step depends on, on the CPU."""
    optimiser, optimiser_record = session.optimiser.capture()
    random, random_record = session.generators.capture()
    sampler, _ = session.sampler.capture()
    return TrainingState(
        record=CheckpointRecord(
            run=plan.run,
            step=session.step,
            fence=plan.fence,
            identity=identity.fields,
            resolved_config=plan.settings.to_json(),
            build=identity.build,
            progress=session.progress_record(),
        ),
        adapter={name: value.detach().cpu() for name, value in session.parameters.items()},
        ema=None if session.ema is None else dict(session.ema.shadows),
        optimiser=optimiser,
        optimiser_record=optimiser_record,
        scheduler_record={"name": plan.settings.learning_rate_scheduler, "step": session.step},
        random=random | sampler,
        random_record=random_record,
    )


def find_resumable(plan: TrainingPlan) -> FoundCheckpoint:
    """This run's own newest checkpoint; without one, the bundle its plan resumes from.

    Raises TrainingError CHECKPOINT_MISSING when a bundle that was asked for is not usable.
    """
    own = find_latest(checkpoint_directory(plan))
    bundle = plan.resume_checkpoint
    if own.state is not None or bundle is None:
        return own
    number = bundle.name.rpartition("-")[2]
    other = find_latest(bundle.parent, at_most=int(number) if number.isdigit() else None)
    if other.state is None:
        raise TrainingError("CHECKPOINT_MISSING", f"no usable checkpoint at {bundle.name}")
    if other.state.record.step >= plan.settings.train_steps:
        raise TrainingError(
            "CHECKPOINT_AT_TARGET",
            f"the checkpoint is at step {other.state.record.step}, "
            f"the target is {plan.settings.train_steps}",
        )
    return FoundCheckpoint(
        state=other.state,
        path=other.path,
        skipped_damaged=own.skipped_damaged + other.skipped_damaged,
    )


def checkpoint_directory(plan: TrainingPlan) -> Path:
    """Where this run's bundles lie."""
    return plan.work_directory / "checkpoints"


def restore_session(
    session: TrainingSession,
    found: FoundCheckpoint,
    plan: TrainingPlan,
    identity: RunIdentity,
    reporter: Reporter,
) -> None:
    """Continue where a checkpoint ended; reports it. Raises TrainingError.

    CHECKPOINT_IDENTITY names the first field that differs, CHECKPOINT_MISMATCH a part that does
    not fit.
    """
    state = found.state
    if state is None or found.path is None:
        _warn_of_damage(found, reporter)
        return
    difference = first_difference(state.record.identity, identity.fields)
    if difference is not None:
        raise TrainingError(
            "CHECKPOINT_IDENTITY", f"the checkpoint differs in {difference}", step=0
        )
    try:
        _restore(session, state)
    except (KeyError, ValueError, RuntimeError, TypeError) as error:
        raise TrainingError(
            "CHECKPOINT_MISMATCH", f"a part of {found.path.name} does not fit this run"
        ) from error
    _restore_ema(session, state, reporter)
    reporter.emit(
        Resumed(
            step=session.step,
            checkpoint=found.path.name,
            skipped_damaged=found.skipped_damaged,
            bitwise=state.record.build == identity.build
            and state.record.resolved_config == plan.settings.to_json(),
        )
    )


def _warn_of_damage(found: FoundCheckpoint, reporter: Reporter) -> None:
    if found.skipped_damaged:
        names = ", ".join(found.skipped_damaged)
        text = f"no checkpoint is usable ({names} damaged): the run starts from step 0"
        reporter.emit(Warned(code="CHECKPOINTS_DAMAGED", text=text))


def _restore(session: TrainingSession, state: TrainingState) -> None:
    if state.adapter.keys() != session.parameters.keys():
        raise ValueError("the adapter has other tensors")
    with torch.no_grad():
        for name, parameter in session.parameters.items():
            if parameter.shape != state.adapter[name].shape:
                raise ValueError(f"{name} has another shape")
            parameter.copy_(state.adapter[name])
    session.optimiser.restore(state.optimiser, state.optimiser_record)
    session.sampler.restore(state.random, state.record.progress)
    session.step = state.record.step
    if state.scheduler_record["step"] != session.step:
        raise ValueError("the schedule is at another step")
    loss_sum = float(state.record.progress["loss_sum"])
    if not math.isfinite(loss_sum):
        raise ValueError("the loss average is not finite")
    session.loss_sum = loss_sum
    session.generators.restore(state.random, state.random_record)


def _restore_ema(session: TrainingSession, state: TrainingState, reporter: Reporter) -> None:
    if session.ema is None:
        return
    if state.ema is None:
        session.ema = MovingAverage(session.parameters, decay=session.ema.decay)
        reporter.emit(
            Warned(
                code="EMA_SEEDED_FROM_WEIGHTS",
                text="the checkpoint holds no moving average; it starts from the weights",
            )
        )
        return
    updates = int(state.record.progress["ema_updates"])
    session.ema = MovingAverage(state.ema, decay=session.ema.decay, num_updates=updates)
    for name, shadow in session.ema.shadows.items():
        session.ema.shadows[name] = shadow.to(session.parameters[name].device)
