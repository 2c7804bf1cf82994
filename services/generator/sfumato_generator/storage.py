"""The generator service's tables: generations, and the gallery's images, which outlive them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    delete,
    func,
    insert,
    select,
    update,
)

from sfumato_chassis.blobs import drop_references, set_references
from sfumato_chassis.database import Timestamp
from sfumato_chassis.errors import NotFound
from sfumato_chassis.jobs import Event, Job
from sfumato_chassis.paging import Page, read_page
from sfumato_generator.plan import GenerationPlan

SERVICE = "generator"
PNG = "image/png"

metadata = MetaData()

generations = Table(
    "generator_generations",
    metadata,
    Column("job", String(64), primary_key=True),
    Column("owner", String(128), nullable=False),
    Column("plan", JSON, nullable=False),
    Column("model_revision", String(64), nullable=False),
    Column("progress", JSON(none_as_null=True)),
    Column("components", JSON, nullable=False),
)

images = Table(
    "generator_images",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("owner", String(128), nullable=False),
    Column("generation", String(64), nullable=False),
    # Of the event that told of it: a snapshot shows the images up to its own sequence.
    Column("sequence", BigInteger, nullable=False),
    Column("create_time", Timestamp, nullable=False),
    Column("digest", String(71), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("width", Integer, nullable=False),
    Column("height", Integer, nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("model_revision", String(64), nullable=False),
    Column("configuration", JSON, nullable=False),
    Column("adapter_files", JSON, nullable=False),
    Index("generator_images_by_time", "owner", "create_time", "name"),
    Index("generator_images_by_generation", "owner", "generation", "create_time", "name"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class GenerationRecord:
    """A row of a generation.

    Attributes:
        model_revision: Marker of the weights that were loaded; empty before.
        progress: The newest step event; None before the first.
        components: Precision of each component, once loaded.
    """

    job: str
    owner: str
    plan: GenerationPlan
    model_revision: str = ""
    progress: Mapping[str, Any] | None = None
    components: Sequence[Mapping[str, str]] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageRecord:
    """A row of the gallery.

    Attributes:
        configuration: The generation's; ``seed`` is the image's own.
        adapter_files: Fields of ``BlobRef``, in the order of the configuration's adapters.
    """

    name: str
    owner: str
    generation: str
    sequence: int
    create_time: datetime
    digest: str
    size_bytes: int
    width: int
    height: int
    seed: int
    model_revision: str
    configuration: Mapping[str, Any]
    adapter_files: Sequence[Mapping[str, Any]]


def insert_generation(connection: Connection, record: GenerationRecord) -> None:
    """Adds a generation, which keeps its adapters' files."""
    connection.execute(
        insert(generations).values(
            job=record.job,
            owner=record.owner,
            plan=record.plan.to_json(),
            model_revision=record.model_revision,
            progress=record.progress,
            components=list(record.components),
        )
    )
    digests = [adapter.digest for adapter in record.plan.adapters]
    set_references(connection, SERVICE, f"generation:{record.job}", digests)


def get_generation(connection: Connection, job: str) -> GenerationRecord:
    """The generation of a job. Raises NotFound for one that was removed meanwhile."""
    row = connection.execute(select(generations).where(generations.c.job == job)).one_or_none()
    if row is None:
        raise NotFound.resource("generation", job)
    values = dict(row._mapping)
    return GenerationRecord(**{**values, "plan": GenerationPlan.from_json(values["plan"])})


def project_generation(connection: Connection, job: Job, events: Sequence[Event]) -> None:
    """Keeps a generation's row and the gallery in line with its log."""
    values: dict[str, Any] = {}
    for event in events:
        match event.kind:
            case "loaded":
                values["model_revision"] = event.data["model_revision"]
                values["components"] = event.data["components"]
            case "step":
                values["progress"] = event.data
            case "image_saved":
                insert_image(connection, image_of(event))
    if values:
        connection.execute(
            update(generations).where(generations.c.job == job.name).values(**values)
        )


def remove_generation(connection: Connection, job: Job, now: datetime) -> None:
    """Removes a generation's row; its images stay."""
    connection.execute(delete(generations).where(generations.c.job == job.name))
    drop_references(connection, SERVICE, f"generation:{job.name}", now)


def image_of(event: Event) -> ImageRecord:
    """The image that an ``image_saved`` event tells of in full."""
    return ImageRecord(**event.data, sequence=event.sequence, create_time=event.time)


def insert_image(connection: Connection, record: ImageRecord) -> None:
    """Adds an image, which keeps its file and its adapters' files."""
    values = {name: getattr(record, name) for name in ImageRecord.__slots__}
    connection.execute(insert(images).values(values))
    adapters = [file["digest"] for file in record.adapter_files]
    set_references(connection, SERVICE, f"image:{record.name}", [record.digest, *adapters])


def get_image(connection: Connection, owner: str, name: str) -> ImageRecord:
    """An image. Raises NotFound."""
    row = connection.execute(
        select(images).where(images.c.name == name, images.c.owner == owner)
    ).one_or_none()
    if row is None:
        raise NotFound.resource("image", name)
    return ImageRecord(**row._mapping)


def num_images(connection: Connection, generation: str, owner: str) -> int:
    """How many images of a generation are saved."""
    statement = (
        select(func.count())
        .select_from(images)
        .where(images.c.owner == owner, images.c.generation == generation)
    )
    return int(connection.execute(statement).scalar_one())


def images_of_generation(
    connection: Connection, generation: str, owner: str, *, up_to_sequence: int
) -> Sequence[ImageRecord]:
    """A generation's images in the order of their seeds."""
    rows = connection.execute(
        select(images)
        .where(
            images.c.owner == owner,
            images.c.generation == generation,
            images.c.sequence <= up_to_sequence,
        )
        .order_by(images.c.seed)
    )
    return [ImageRecord(**row._mapping) for row in rows]


def select_images(
    connection: Connection, owner: str, *, generation: str | None, size: int, token: str
) -> Page[ImageRecord]:
    """A page of the gallery, or of one generation's part of it, newest first."""
    statement = select(images).where(images.c.owner == owner)
    if generation is not None:
        statement = statement.where(images.c.generation == generation)
    return read_page(
        connection,
        statement,
        [images.c.create_time, images.c.name],
        lambda row: ImageRecord(**row._mapping),
        query={"list": "image", "owner": owner, "generation": generation or ""},
        size=size,
        token=token,
    )
