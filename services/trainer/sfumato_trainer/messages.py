"""The messages of ``sfumato.trainer.v1``, from the service's records and back."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from sfumato.blobs.v1 import blobs_pb2
from sfumato.job.v1 import sources_pb2
from sfumato.trainer.v1 import configuration_pb2, trainer_pb2
from sfumato_chassis.job_messages import (
    duration,
    event_header,
    job_status,
    shared_event,
    timestamp,
)
from sfumato_chassis.jobs import Event, Job
from sfumato_trainer.run_request import BaseModel
from sfumato_trainer.settings import TrainingSettings
from sfumato_trainer.storage import ADAPTER_MEDIA_TYPE, Adapter, Run

Configuration = configuration_pb2.TrainingConfiguration

ENUM_PREFIXES = {
    "learning_rate_scheduler": "LEARNING_RATE_SCHEDULER_",
    "compute_precision": "COMPUTE_PRECISION_",
    "weighting_scheme": "WEIGHTING_SCHEME_",
}
SETTINGS_FIELDS = tuple(
    field.name
    for field in dataclasses.fields(TrainingSettings)
    if field.name not in {"base_model", "family"}
)
"""Settings that stand in the public configuration under the same name."""


def base_model(source: sources_pb2.ModelSource) -> BaseModel:
    """The base model that a request names."""
    kind = str(source.WhichOneof("source"))
    hub = source.hub
    return BaseModel(
        kind=kind,
        reference=hub.id if kind == "hub" else getattr(source, kind).path,
        revision=hub.revision if kind == "hub" and hub.HasField("revision") else "main",
        message=json_format.MessageToDict(source, preserving_proto_field_name=True),
    )


def requested_settings(configuration: Configuration) -> Mapping[str, Any]:
    """Only what the caller set, by the names of the settings."""
    requested: dict[str, Any] = {}
    for field, value in configuration.ListFields():
        name = field.name
        if name not in SETTINGS_FIELDS:
            continue
        if field.enum_type is not None:
            text = field.enum_type.values_by_number[value].name
            requested[name] = text.removeprefix(ENUM_PREFIXES[name]).lower()
        elif name == "flow_shift":
            requested[name] = "auto" if value.HasField("automatic") else value.shift
        elif name == "target_modules":
            requested[name] = tuple(value)
        else:
            requested[name] = value
    return requested


def configuration_message(
    settings: TrainingSettings, source: Mapping[str, Any], dataset: str, version: int
) -> Configuration:
    """The configuration with nothing left open."""
    message = Configuration(
        base_model=json_format.ParseDict(dict(source), sources_pb2.ModelSource()),
        family=settings.family,
        dataset=dataset,
        dataset_version=version,
        adapter_type=configuration_pb2.ADAPTER_TYPE_LORA,
        optimizer=configuration_pb2.OPTIMIZER_TYPE_ADAMW,
    )
    for name in SETTINGS_FIELDS:
        value = getattr(settings, name)
        if name in ENUM_PREFIXES:
            enum = message.DESCRIPTOR.fields_by_name[name].enum_type
            assert enum is not None
            number = enum.values_by_name[f"{ENUM_PREFIXES[name]}{value.upper()}"].number
            setattr(message, name, number)
        elif name == "flow_shift":
            if value == "auto":
                message.flow_shift.automatic.SetInParent()
            elif value is not None:
                message.flow_shift.shift = value
        elif name == "target_modules":
            message.target_modules.extend(value)
        else:
            setattr(message, name, value)
    return message


def run_message(job: Job | None, run: Run, adapters: Sequence[Adapter]) -> trainer_pb2.TrainingRun:
    """A run; without a job, one that was only validated."""
    by_ema = {adapter.ema: adapter_message(adapter) for adapter in adapters}
    return trainer_pb2.TrainingRun(
        name=run.job,
        owner=run.owner,
        status=None if job is None else job_status(job),
        display_name=run.display_name,
        dataset=trainer_pb2.TrainingDataset(
            name=run.dataset,
            version=run.dataset_version,
            digest=run.dataset_digest,
            num_samples=run.num_samples,
        ),
        resolved_configuration=configuration_message(
            run.settings, run.base_model, run.dataset, run.dataset_version
        ),
        base_revision=run.base_revision,
        progress=None if run.progress is None else progress_message(run.progress),
        checkpoint=None if run.checkpoint is None else checkpoint_message(run.checkpoint),
        adapter=by_ema.get(False),
        ema_adapter=by_ema.get(True),
        stopped_early=run.stopped_early,
        num_steps_computed=run.num_steps_computed,
        warnings=[warning_message(warning) for warning in run.warnings],
    )


def adapter_message(adapter: Adapter) -> trainer_pb2.Adapter:
    """An adapter."""
    facts = adapter.run_facts
    return trainer_pb2.Adapter(
        name=adapter.name,
        owner=adapter.owner,
        training_run=adapter.job,
        file=blobs_pb2.BlobRef(
            digest=adapter.digest, size_bytes=adapter.size_bytes, media_type=ADAPTER_MEDIA_TYPE
        ),
        family=facts["family"],
        base_model=json_format.ParseDict(facts["base_model"], sources_pb2.ModelSource()),
        base_revision=facts["base_revision"],
        rank=facts["rank"],
        steps=adapter.steps,
        dataset=trainer_pb2.TrainingDataset(
            name=facts["dataset"],
            version=facts["dataset_version"],
            digest=facts["dataset_digest"],
            num_samples=facts["num_samples"],
        ),
        ema=adapter.ema,
        create_time=timestamp(adapter.create_time),
    )


def event_message(event: Event) -> trainer_pb2.TrainingRunEvent:
    """An event other than ``succeeded``."""
    fields: dict[str, Any] = {event.kind: shared_event(event) or own_event(event)}
    return trainer_pb2.TrainingRunEvent(header=event_header(event), **fields)


def succeeded_message(
    event: Event, finished: trainer_pb2.TrainingRun
) -> trainer_pb2.TrainingRunEvent:
    """The event that tells of what a run published."""
    return trainer_pb2.TrainingRunEvent(
        header=event_header(event),
        succeeded=trainer_pb2.RunSucceeded(
            adapter=finished.adapter if finished.HasField("adapter") else None,
            ema_adapter=finished.ema_adapter if finished.HasField("ema_adapter") else None,
            steps=event.data["steps"],
            duration=duration(event.data["seconds"]),
            stopped_early=event.data["stopped_early"],
        ),
    )


def own_event(event: Event) -> Message | None:
    """The message of an event that only training runs have."""
    data = event.data
    match event.kind:
        case "preparing":
            return trainer_pb2.RunPreparing(
                stage=data["stage"],
                done=data["done"],
                total=data["total"],
                num_bytes_done=data["size_bytes"],
            )
        case "loaded":
            return loaded_message(data)
        case "resumed":
            return trainer_pb2.RunResumed(
                step=data["step"],
                damaged_checkpoints=data["skipped_damaged"],
                checkpoint=data["checkpoint"],
                bitwise=data["bitwise"],
            )
        case "progress":
            return progress_message(data)
        case "checkpoint_saved":
            return checkpoint_message(data)
        case "checkpoint_failed":
            return trainer_pb2.CheckpointFailed(step=data["step"], message=data["message"])
        case "warning":
            return warning_message(data)
        case "stop_requested":
            return trainer_pb2.RunStopRequested()
        case _:
            return None


def loaded_message(data: Mapping[str, Any]) -> trainer_pb2.RunLoaded:
    """The event of a denoiser that is ready."""
    return trainer_pb2.RunLoaded(
        components=[
            sources_pb2.ComponentStatus(
                component="denoiser", requested=data["precision"], engaged=data["precision"]
            )
        ],
        encoders_loaded=data["encoders_loaded"],
        compiled=data["compiled"],
        latents=trainer_pb2.ConditioningCounts(
            hits=data["latent_hits"], misses=data["latent_misses"]
        ),
        texts=trainer_pb2.ConditioningCounts(hits=data["text_hits"], misses=data["text_misses"]),
    )


def progress_message(data: Mapping[str, Any]) -> trainer_pb2.TrainingProgress:
    """Where a run stands."""
    return trainer_pb2.TrainingProgress(
        step=data["step"],
        total_steps=data["total"],
        epoch=data["epoch"],
        loss=data["loss"],
        average_loss=data["average_loss"],
        learning_rate=data["learning_rate"],
        gradient_norm=data["gradient_norm"],
        samples_per_second=data["samples_per_second"],
        peak_memory_bytes=data["peak_memory_bytes"],
        eta=duration(data["eta_seconds"]),
    )


def checkpoint_message(data: Mapping[str, Any]) -> trainer_pb2.Checkpoint:
    """A saved state."""
    return trainer_pb2.Checkpoint(
        step=data["step"], size_bytes=data["size_bytes"], digest=data["digest"]
    )


def warning_message(data: Mapping[str, Any]) -> trainer_pb2.RunWarning:
    """Something that should be known."""
    return trainer_pb2.RunWarning(code=data["code"], message=data["text"])
