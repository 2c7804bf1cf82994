"""A deployment without a server, whose worker processes are made up, and runs in its store."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Connection

from made_up_workers import MadeUpExecutor
from sfumato_chassis.clock import ManualClock
from sfumato_chassis.config import load_config
from sfumato_chassis.failpoints import unarmed
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.jobs import InterruptionPolicy, Job
from sfumato_chassis.platform import Platform, open_platform
from sfumato_chassis.requests import Request, fingerprint_of
from sfumato_chassis.schema import CHASSIS_SCHEMA, prepare_database
from sfumato_chassis.serve import all_sections
from sfumato_diffusion.families.identify import identify_family
from sfumato_trainer import storage
from sfumato_trainer.app import SCHEMA
from sfumato_trainer.config import TrainerConfig
from sfumato_trainer.engine import TrainingEngine
from sfumato_trainer.run_request import BaseModel
from sfumato_trainer.runs import resolve_settings
from sfumato_trainer.settings import TrainingSample

OWNER = "local"
POLL_SECONDS = 0.01
SAMPLE = TrainingSample(file_name="a.png", image_digest="0" * 64, width=64, height=64, caption="a")


class OneSample:
    """Stands for the datasets service: every version holds one picture."""

    async def samples(self, owner: str, dataset: str, version: int) -> Sequence[TrainingSample]:
        return [SAMPLE]

    async def pin(self, *version: object, holder: str, seconds: float) -> None:
        assert holder

    async def unpin(self, *version: object, holder: str) -> None:
        assert holder


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 1, 1, tzinfo=UTC))


@pytest.fixture
def executor() -> MadeUpExecutor:
    return MadeUpExecutor()


@pytest.fixture
async def platform(
    tmp_path: Path, clock: ManualClock, executor: MadeUpExecutor
) -> AsyncIterator[Platform]:
    config = load_config(
        all_sections(), file=None, environment={}, overrides={"storage.data_dir": tmp_path}
    )
    opened = open_platform(config, clock=clock, new_name=random_name, failpoint=unarmed)
    await prepare_database(opened.database, [CHASSIS_SCHEMA, SCHEMA])
    yield replace(opened, executor=executor)
    opened.database.close()


@pytest.fixture
async def engine(platform: Platform, clock: ManualClock) -> AsyncIterator[TrainingEngine]:
    """Stopped after the test, though its workers hear no order."""
    made = TrainingEngine(platform, TrainerConfig(), OneSample())
    yield made
    platform.draining.set()
    draining = asyncio.create_task(made.drain())
    while not draining.done():
        await asyncio.sleep(POLL_SECONDS)
        clock.advance(1.0)
    await draining
    await made.stop()


@pytest.fixture
def queued(engine: TrainingEngine) -> Callable[..., Awaitable[Job]]:
    """Makes runs that wait."""
    base = BaseModel(kind="hub", reference="org/model", revision="main", message={})
    settings = resolve_settings(
        {}, base, identify_family("org/model", explicit="z-image"), device="cpu"
    )

    async def make(policy: InterruptionPolicy = InterruptionPolicy.AUTO) -> Job:
        def add(connection: Connection, job: Job) -> None:
            run = storage.Run(
                job=job.name,
                owner=OWNER,
                display_name="",
                base_model={},
                base_path="",
                settings=settings,
                dataset="cats",
                dataset_version=1,
                dataset_digest="",
                num_samples=1,
            )
            storage.insert_run(connection, run)

        request = Request(
            principal=OWNER,
            method="tests.CreateTrainingRun",
            request_id=str(uuid.uuid4()),
            fingerprint=fingerprint_of(b""),
        )
        job, _ = await engine.jobs.create(request, policy=policy, add=add)
        return job

    return make
