"""The gallery: what a worker says of a picture becomes a record, in the step that appends the event."""

from collections.abc import Sequence

from sqlalchemy import Connection

from sfumato_chassis.blobs import Blob, BlobStore
from sfumato_chassis.identifiers import NewName
from sfumato_chassis.jobs import Event, Job, NewEvent
from sfumato_generator import storage
from sfumato_generator.storage import GenerationRecord, ImageRecord


class Gallery:
    """Records of pictures whose files are blobs."""

    def __init__(self, blobs: BlobStore, *, new_name: NewName) -> None:
        self._blobs = blobs
        self._new_name = new_name

    def completed(self, event: NewEvent, record: GenerationRecord) -> NewEvent:
        """A worker's event as the log holds it; one of a picture gets a name and the whole record.

        The worker tells ``digest``, ``size_bytes``, ``width``, ``height``, ``seed`` and
        ``model_revision`` of a picture whose bytes it has stored.
        """
        if event.kind != "image_saved":
            return event
        data = {
            **event.data,
            "name": self._new_name("image"),
            "owner": record.owner,
            "generation": record.job,
            "configuration": record.plan.configuration.to_json(),
            "adapter_files": [adapter.blob() for adapter in record.plan.adapters],
        }
        return NewEvent(kind=event.kind, data=data)

    def project(self, connection: Connection, job: Job, events: Sequence[Event]) -> None:
        """Brings the tables in line with new events; what they tell of is kept from then on."""
        for event in events:
            if event.kind == "image_saved":
                self._blobs.record(connection, blob_of(storage.image_of(event)))
        storage.project_generation(connection, job, events)


def blob_of(image: ImageRecord) -> Blob:
    """An image's file."""
    return Blob(digest=image.digest, size_bytes=image.size_bytes, media_type=storage.PNG)
