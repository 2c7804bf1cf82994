"""A deployment without a server, whose worker processes are made up, and generations in its store."""

import uuid
from dataclasses import replace
from datetime import timedelta

import pytest

from made_up_workers import HastyClock, MadeUpExecutor
from sfumato_chassis.config import load_config
from sfumato_chassis.failpoints import unarmed
from sfumato_chassis.identifiers import random_name
from sfumato_chassis.jobs import InterruptionPolicy, JobKind, NewEvent
from sfumato_chassis.platform import open_platform
from sfumato_chassis.requests import Request, fingerprint_of
from sfumato_chassis.schema import CHASSIS_SCHEMA, prepare_database
from sfumato_chassis.serve import all_sections
from sfumato_generator import storage
from sfumato_generator.app import SCHEMA
from sfumato_generator.configuration import Configuration, ModelSource
from sfumato_generator.gallery import Gallery
from sfumato_generator.plan import GenerationPlan
from sfumato_generator.storage import GenerationRecord

OWNER = "local"
STARTED = NewEvent(kind="started", data={"device": "cpu"})


@pytest.fixture
def executor():
    return MadeUpExecutor()


@pytest.fixture
async def platform(tmp_path, executor):
    config = load_config(
        all_sections(), file=None, environment={}, overrides={"storage.data_dir": tmp_path}
    )
    opened = open_platform(config, clock=HastyClock(), new_name=random_name, failpoint=unarmed)
    await prepare_database(opened.database, [CHASSIS_SCHEMA, SCHEMA])
    yield replace(opened, executor=executor)
    opened.database.close()


@pytest.fixture
def gallery(platform):
    return Gallery(platform.blobs, new_name=platform.new_name)


@pytest.fixture
def jobs(platform, gallery):
    kind = JobKind(
        name="generation",
        prefix="generation",
        project=gallery.project,
        retention=timedelta(hours=24),
    )
    return platform.job_store(kind, on_queue=lambda: None)


@pytest.fixture
def plan():
    return GenerationPlan(
        configuration=Configuration(
            model=ModelSource(kind="directory", reference="z-image"),
            family="z-image",
            prompt="a fox",
            negative_prompt=None,
            width=64,
            height=64,
            steps=2,
            guidance=4.0,
            seed=1,
            count=2,
            adapters=(),
            workflow="text_to_image",
        ),
        model_directory="/models/z-image",
        model_marker="",
        requested_precision="auto",
        precision="fp32",
        adapters=(),
    )


@pytest.fixture
def queued(jobs, plan):
    """Makes generations that wait."""

    async def make(policy=InterruptionPolicy.MANUAL):
        def add(connection, job):
            record = GenerationRecord(job=job.name, owner=job.owner, plan=plan)
            storage.insert_generation(connection, record)

        request = Request(
            principal=OWNER,
            method="tests.CreateGeneration",
            request_id=str(uuid.uuid4()),
            fingerprint=fingerprint_of(b""),
        )
        job, _ = await jobs.create(request, policy=policy, add=add)
        return job

    return make


@pytest.fixture
def running(jobs, queued):
    """Makes generations that are at work."""

    async def make(policy=InterruptionPolicy.MANUAL):
        return await jobs.claim((await queued(policy)).name, STARTED)

    return make
