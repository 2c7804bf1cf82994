"""The trainer service's tables: runs and adapters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    Text,
    delete,
    insert,
    select,
    update,
)

from sfumato_chassis.blobs import Blob, set_references
from sfumato_chassis.database import Timestamp
from sfumato_chassis.errors import FailedPrecondition, NotFound, Reason
from sfumato_chassis.job_store import Fenced
from sfumato_chassis.jobs import Event, Job
from sfumato_chassis.paging import Page, read_page
from sfumato_trainer.settings import TrainingSettings

ADAPTER_MEDIA_TYPE = "application/vnd.safetensors"

metadata = MetaData()

runs = Table(
    "trainer_runs",
    metadata,
    Column("job", String(64), primary_key=True),
    Column("owner", String(128), nullable=False),
    Column("display_name", String(200), nullable=False),
    Column("base_model", JSON, nullable=False),
    Column("base_path", Text, nullable=False),
    Column("base_revision", String(64), nullable=False),
    Column("settings", JSON, nullable=False),
    Column("dataset", String(128), nullable=False),
    Column("dataset_version", BigInteger, nullable=False),
    Column("dataset_digest", String(71), nullable=False),
    Column("num_samples", BigInteger, nullable=False),
    Column("progress", JSON(none_as_null=True)),
    Column("checkpoint", JSON(none_as_null=True)),
    Column("warnings", JSON, nullable=False),
    Column("stop_requested", Boolean, nullable=False),
    Column("stopped_early", Boolean, nullable=False),
    # Step that the current attempt has reached; what lies above it was computed by it.
    Column("attempt_step", BigInteger, nullable=False),
    Column("num_steps_computed", BigInteger, nullable=False),
    Column("idle_attempts", Integer, nullable=False),
)

adapters = Table(
    "trainer_adapters",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("owner", String(128), nullable=False),
    Column("job", String(64), nullable=False, index=True),
    Column("ema", Boolean, nullable=False),
    Column("digest", String(71), nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("steps", BigInteger, nullable=False),
    Column("create_time", Timestamp, nullable=False),
    # Kept with the adapter, which outlives its run's record.
    Column("run_facts", JSON, nullable=False),
    Index("trainer_adapters_by_owner", "owner", "create_time", "name"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A row of a run.

    Attributes:
        base_model: The source as the caller named it, as JSON of ``sfumato.job.v1.ModelSource``.
        base_path: Folder or file on this machine that the source names; empty for a Hub id.
        progress: The newest progress event; None before the first.
        checkpoint: The newest saved state; None before the first.
    """

    job: str
    owner: str
    display_name: str
    base_model: Mapping[str, Any]
    base_path: str
    base_revision: str = ""
    settings: TrainingSettings
    dataset: str
    dataset_version: int
    dataset_digest: str
    num_samples: int
    progress: Mapping[str, Any] | None = None
    checkpoint: Mapping[str, Any] | None = None
    warnings: Sequence[Mapping[str, str]] = ()
    stop_requested: bool = False
    stopped_early: bool = False
    attempt_step: int = 0
    num_steps_computed: int = 0
    idle_attempts: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """A row of an adapter.

    Attributes:
        run_facts: ``base_model``, ``base_revision``, ``family``, ``rank``, ``dataset``,
            ``dataset_version``, ``dataset_digest``, ``num_samples`` of its run.
    """

    name: str
    owner: str
    job: str
    ema: bool
    digest: str
    size_bytes: int
    steps: int
    create_time: datetime
    run_facts: Mapping[str, Any]


def insert_run(connection: Connection, run: Run) -> None:
    """Adds a run."""
    values = {name: getattr(run, name) for name in Run.__slots__}
    connection.execute(
        insert(runs).values({**values, "settings": run.settings.to_json(), "warnings": []})
    )


def get_run(connection: Connection, job: str) -> Run:
    """The run of a job. Raises NotFound for one that was removed meanwhile."""
    row = connection.execute(select(runs).where(runs.c.job == job)).one_or_none()
    if row is None:
        raise NotFound.resource("training_run", job)
    values = dict(row._mapping)
    values["settings"] = TrainingSettings.from_json(values["settings"])
    return Run(**values)


def run_of(connection: Connection, job: Job) -> Run:
    """The run of ``job``. Raises NotFound."""
    return get_run(connection, job.name)


def refuse_stopping(connection: Connection, job: Job) -> None:
    """Refuses to cancel a run that is being stopped: the first of the two wins."""
    if get_run(connection, job.name).stop_requested:
        raise FailedPrecondition(Reason.JOB_STATE_UNSUITABLE, f"{job.name} is being stopped")


def request_stop(connection: Connection, job: Job) -> None:
    """Notes that the run is to end early with a result. Raises Fenced when that is noted already."""
    if get_run(connection, job.name).stop_requested:
        raise Fenced(job.name)
    connection.execute(update(runs).where(runs.c.job == job.name).values(stop_requested=True))


def remove_run(connection: Connection, job: Job) -> None:
    """Removes a run's row; its adapters stay."""
    connection.execute(delete(runs).where(runs.c.job == job.name))


def project_run(connection: Connection, job: Job, events: Sequence[Event]) -> None:
    """Keeps a run's row and adapters in line with its log."""
    if [event.kind for event in events] == ["queued"]:
        return
    run = get_run(connection, job.name)
    values: dict[str, Any] = {}
    attempt_step, computed = run.attempt_step, run.num_steps_computed
    for event in events:
        data = event.data
        if event.kind in {"progress", "checkpoint_saved"}:
            computed += data["step"] - attempt_step
            attempt_step = data["step"]
        match event.kind:
            case "started":
                attempt_step = 0
            case "resumed":
                attempt_step = data["step"]
            case "loaded":
                values["base_revision"] = data["base_revision"]
            case "progress":
                values |= {"progress": dict(data), "idle_attempts": 0}
            case "checkpoint_saved":
                values["checkpoint"] = dict(data)
            case "warning":
                values["warnings"] = [*values.get("warnings", run.warnings), dict(data)]
            case "interrupted":
                if data["failure"]["reason"] == Reason.WORKER_DIED:
                    values["idle_attempts"] = values.get("idle_attempts", run.idle_attempts) + 1
            case "succeeded":
                values["stopped_early"] = data["stopped_early"]
                add_adapters(connection, job, run, event)
    values |= {"attempt_step": attempt_step, "num_steps_computed": computed}
    connection.execute(update(runs).where(runs.c.job == job.name).values(**values))


def add_adapters(connection: Connection, job: Job, run: Run, event: Event) -> None:
    """Adds what a run published."""
    suffix = job.name.partition("-")[2]
    facts = {
        "base_model": dict(run.base_model),
        "base_revision": run.base_revision,
        "family": run.settings.family,
        "rank": run.settings.rank,
        "dataset": run.dataset,
        "dataset_version": run.dataset_version,
        "dataset_digest": run.dataset_digest,
        "num_samples": run.num_samples,
    }
    for field, name in (("adapter", f"adapter-{suffix}"), ("ema_adapter", f"adapter-{suffix}-ema")):
        artifact = event.data.get(field)
        if artifact is None:
            continue
        adapter = Adapter(
            name=name,
            owner=job.owner,
            job=job.name,
            ema=field == "ema_adapter",
            digest=artifact["digest"],
            size_bytes=artifact["size_bytes"],
            steps=event.data["steps"],
            create_time=event.time,
            run_facts=facts,
        )
        connection.execute(
            insert(adapters).values({name: getattr(adapter, name) for name in Adapter.__slots__})
        )
        set_references(connection, "trainer", f"adapter:{name}", [adapter.digest])


def blobs_of(event: Event) -> Sequence[Blob]:
    """The blobs that a ``succeeded`` event names."""
    return [
        Blob(
            digest=artifact["digest"],
            size_bytes=artifact["size_bytes"],
            media_type=ADAPTER_MEDIA_TYPE,
        )
        for artifact in (event.data["adapter"], event.data.get("ema_adapter"))
        if artifact is not None
    ]


def adapters_of(connection: Connection, job: str) -> Sequence[Adapter]:
    """What a run published: the adapter, then its averaged one."""
    rows = connection.execute(
        select(adapters).where(adapters.c.job == job).order_by(adapters.c.ema)
    )
    return [Adapter(**row._mapping) for row in rows]


def find_adapter(
    connection: Connection, owner: str, *, name: str | None, job: str | None
) -> Adapter:
    """An adapter by its own name or its run's. Raises NotFound."""
    statement = select(adapters).where(adapters.c.owner == owner)
    if name is not None:
        statement = statement.where(adapters.c.name == name)
    else:
        statement = statement.where(adapters.c.job == job, ~adapters.c.ema)
    row: Row[Any] | None = connection.execute(statement).one_or_none()
    if row is None:
        raise NotFound.resource("adapter", name or job or "")
    return Adapter(**row._mapping)


def select_adapters(connection: Connection, owner: str, *, size: int, token: str) -> Page[Adapter]:
    """A page of adapters, newest first."""
    return read_page(
        connection,
        select(adapters).where(adapters.c.owner == owner),
        [adapters.c.create_time, adapters.c.name],
        lambda row: Adapter(**row._mapping),
        query={"list": "adapter", "owner": owner},
        size=size,
        token=token,
    )
