"""A create is done once, however often it is asked for."""

from __future__ import annotations

import asyncio
import uuid

import grpc
import pytest

from deployment import ServeProcess, client_of, training_request
from losing_proxy import LosingProxy
from sfumato.trainer.v1 import trainer_pb2
from sfumato_client import Client
from sfumato_client.errors import AlreadyExists


def request(request_id: str, *, steps: int = 1) -> trainer_pb2.CreateTrainingRunRequest:
    asked = training_request(model="tiny-z-image", steps=steps)
    asked.request_id = request_id
    return asked


async def num_runs(client: Client) -> int:
    return len([run async for run in client.trainer.list_training_runs()])


async def test_twenty_at_once_are_one(client: Client) -> None:
    asked = request(str(uuid.uuid4()))
    answers = await asyncio.gather(*(client.trainer.create_training_run(asked) for _ in range(20)))
    assert len({answer.training_run.name for answer in answers}) == 1
    assert sorted(answer.deduplicated for answer in answers) == [False] + [True] * 19
    assert await num_runs(client) == 1


async def test_a_lost_answer_is_asked_for_again(serve: ServeProcess, client: Client) -> None:
    async with (
        LosingProxy(serve.address, lose="CreateTrainingRun") as proxy,
        client_of(proxy.address) as unlucky,
    ):
        answer = await unlucky.trainer.create_training_run(request(str(uuid.uuid4())))
        assert proxy.num_lost == 1
    assert answer.deduplicated
    assert await num_runs(client) == 1


async def test_another_body_is_refused(client: Client) -> None:
    request_id = str(uuid.uuid4())
    await client.trainer.create_training_run(request(request_id))
    with pytest.raises(AlreadyExists) as refused:
        await client.trainer.create_training_run(request(request_id, steps=2))
    assert refused.value.reason == "REQUEST_ID_REUSED"
    assert refused.value.code is grpc.StatusCode.ALREADY_EXISTS
    assert await num_runs(client) == 1
