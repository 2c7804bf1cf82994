"""The messages of ``sfumato.generator.v1``, from the service's records and back."""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message

from sfumato.blobs.v1 import blobs_pb2
from sfumato.generator.v1 import generator_pb2
from sfumato.job.v1 import sources_pb2
from sfumato_chassis.job_messages import (
    duration,
    event_header,
    job_status,
    shared_event,
    timestamp,
)
from sfumato_chassis.jobs import Event, Job
from sfumato_generator import storage
from sfumato_generator.configuration import (
    AdapterChoice,
    AdapterKind,
    GenerationRequest,
    ModelKind,
    ModelSource,
)
from sfumato_generator.plan import GenerationPlan
from sfumato_generator.storage import GenerationRecord, ImageRecord

MODEL_KINDS: Mapping[str, ModelKind] = {
    "hub": "hub",
    "directory": "directory",
    "single_file": "single_file",
    "gguf": "gguf",
}
ADAPTER_KINDS: Mapping[str, AdapterKind] = {
    "training_run": "training_run",
    "adapter": "adapter",
    "upload_digest": "upload_digest",
    "hub": "hub",
}


def generation_request(message: generator_pb2.GenerationConfiguration) -> GenerationRequest:
    """What a caller asks for."""

    def optional(field: str) -> Any:
        return getattr(message, field) if message.HasField(field) else None  # type: ignore[arg-type]

    return GenerationRequest(
        model=model_source(message.model),
        family=optional("family"),
        prompt=message.prompt,
        negative_prompt=optional("negative_prompt"),
        width=optional("width"),
        height=optional("height"),
        steps=optional("steps"),
        guidance=optional("guidance"),
        seed=optional("seed"),
        count=optional("count"),
        adapters=tuple(adapter_choice(adapter) for adapter in message.adapters),
        workflow=str(message.WhichOneof("workflow")),
    )


def model_source(message: sources_pb2.ModelSource) -> ModelSource:
    """The base model that a request names."""
    kind = MODEL_KINDS[str(message.WhichOneof("source"))]
    if kind != "hub":
        return ModelSource(kind=kind, reference=getattr(message, kind).path)
    hub = message.hub
    revision = hub.revision if hub.HasField("revision") else None
    return ModelSource(kind=kind, reference=hub.id, revision=revision)


def adapter_choice(message: sources_pb2.WeightedAdapter) -> AdapterChoice:
    """One adapter that a request names."""
    kind = ADAPTER_KINDS[str(message.adapter.WhichOneof("source"))]
    source = getattr(message.adapter, kind)
    return AdapterChoice(
        kind=kind,
        reference=source.id if kind == "hub" else source,
        weight=message.weight if message.HasField("weight") else 1.0,
    )


def configuration_message(data: Mapping[str, Any]) -> generator_pb2.GenerationConfiguration:
    """A resolved configuration from its JSON."""
    return json_format.ParseDict(dict(data), generator_pb2.GenerationConfiguration())


def validated_message(plan: GenerationPlan, owner: str) -> generator_pb2.Generation:
    """A generation that was only validated."""
    return generator_pb2.Generation(
        owner=owner, resolved_configuration=configuration_message(plan.configuration.to_json())
    )


def generation_message(
    job: Job, record: GenerationRecord, images: Sequence[ImageRecord]
) -> generator_pb2.Generation:
    """A generation."""
    return generator_pb2.Generation(
        name=job.name,
        owner=job.owner,
        status=job_status(job),
        resolved_configuration=configuration_message(record.plan.configuration.to_json()),
        model_revision=record.model_revision,
        progress=None if record.progress is None else progress_message(record.progress),
        components=[component_message(component) for component in record.components],
        images=[image_message(image) for image in images],
    )


def progress_message(data: Mapping[str, Any]) -> generator_pb2.GenerationProgress:
    """Where a generation stands."""
    return generator_pb2.GenerationProgress(
        image=data["image"],
        num_images=data["num_images"],
        step=data["step"],
        num_steps=data["num_steps"],
        eta=duration(data["eta_seconds"]),
    )


def component_message(data: Mapping[str, str]) -> sources_pb2.ComponentStatus:
    """What became of a component's precision."""
    return sources_pb2.ComponentStatus(**data)


def image_message(image: ImageRecord) -> generator_pb2.Image:
    """A picture's record."""
    return generator_pb2.Image(
        name=image.name,
        owner=image.owner,
        generation=image.generation,
        file=blobs_pb2.BlobRef(
            digest=image.digest, size_bytes=image.size_bytes, media_type=storage.PNG
        ),
        width=image.width,
        height=image.height,
        seed=image.seed,
        configuration=configuration_message(image.configuration),
        model_revision=image.model_revision,
        adapter_files=[blobs_pb2.BlobRef(**file) for file in image.adapter_files],
        create_time=timestamp(image.create_time),
    )


def event_message(event: Event) -> generator_pb2.GenerationEvent:
    """An event."""
    message = generator_pb2.GenerationEvent(header=event_header(event))
    payload = shared_event(event) or own_event(event)
    if payload is not None:
        getattr(message, event.kind).CopyFrom(payload)
        getattr(message, event.kind).SetInParent()
    return message


def own_event(event: Event) -> Message | None:
    """The message of an event that only generations have."""
    data = event.data
    match event.kind:
        case "loading":
            return generator_pb2.GenerationLoading(component=data["component"])
        case "loaded":
            return generator_pb2.GenerationLoaded(
                components=[component_message(component) for component in data["components"]],
                resident=data["resident"],
                model_revision=data["model_revision"],
            )
        case "step":
            return progress_message(data)
        case "image_saved":
            return image_message(storage.image_of(event))
        case "succeeded":
            return generator_pb2.GenerationSucceeded(
                num_images=data["num_images"], duration=duration(data["seconds"])
            )
        case _:
            return None
