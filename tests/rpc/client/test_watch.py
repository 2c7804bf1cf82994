"""Watches against a real server: cuts, silence, drains, replaced logs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from cutting_proxy import CuttingProxy
from import_server import IMPORT, ImportServer, Response, progress_event
from serving import quick_client, serving
from sfumato.datasets.v1 import imports_pb2
from sfumato.job.v1 import job_pb2
from sfumato_client import (
    Attached,
    Client,
    ContractViolated,
    Cursor,
    Event,
    Finished,
    NotFound,
    OutOfRange,
    Reconnecting,
    Snapshot,
    TransportLost,
    Unavailable,
)
from statuses import status

REPLAY = Cursor(replay=True)


async def kinds_and_sequences(
    client: Client, *, cursor: Cursor | None = None, reconnections: list[Reconnecting] | None = None
) -> list[tuple[str, int]]:
    """Every item of a watch up to its end: its kind and the sequence it stands for."""
    seen: list[tuple[str, int]] = []
    on_reconnecting = None if reconnections is None else reconnections.append
    items = client.datasets.watch_import(IMPORT, cursor=cursor, on_reconnecting=on_reconnecting)
    async with aclosing(items):
        async for item in items:
            match item:
                case Attached(status=job):
                    seen.append(("attached", job.last_sequence))
                case Snapshot(resource=resource) | Finished(resource=resource):
                    kind = "snapshot" if isinstance(item, Snapshot) else "finished"
                    seen.append((kind, resource.status.last_sequence))
                case Event(event=event):
                    seen.append(("event", event.header.sequence))
    return seen


def events(first: int, last: int) -> list[tuple[str, int]]:
    return [("event", sequence) for sequence in range(first, last + 1)]


@pytest.mark.parametrize("seed", [1, 2])
async def test_fifty_cuts_lose_no_event_and_repeat_none(seed: int) -> None:
    imports = ImportServer()
    async with (
        serving(imports=imports) as port,
        CuttingProxy(port, seed=seed, max_cuts=50) as proxy,
        quick_client(proxy.address, seed=seed, budget_seconds=30) as client,
    ):
        await imports.append(1999)
        await imports.finish()
        seen = await kinds_and_sequences(client, cursor=REPLAY)
    assert proxy.num_cuts == 50
    assert seen == [("attached", 2000), *events(1, 2000), ("finished", 2000)]


async def test_events_that_happen_while_it_watches_arrive_through_cuts() -> None:
    imports = ImportServer()

    async def live() -> None:
        for _ in range(100):
            await imports.append(6)
            await asyncio.sleep(0)
        await imports.finish()

    async with (
        serving(imports=imports) as port,
        CuttingProxy(port, seed=3, max_cuts=20, largest_offset=700) as proxy,
        quick_client(proxy.address, seed=3, budget_seconds=30) as client,
    ):
        appending = asyncio.create_task(live())
        seen = await kinds_and_sequences(client, cursor=REPLAY)
        await appending
    assert seen[1:] == [*events(1, 601), ("finished", 601)]


async def test_finished_job_answers_attached_snapshot_finished() -> None:
    imports = ImportServer()
    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        await imports.append(4)
        await imports.finish()
        seen = await kinds_and_sequences(client)
    assert seen == [("attached", 5), ("snapshot", 5), ("finished", 5)]


async def test_cursor_goes_on_where_it_stopped() -> None:
    imports = ImportServer()
    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        await imports.append(4)
        await imports.finish()
        seen = await kinds_and_sequences(client, cursor=Cursor(sequence=3, log_id="log-1"))
    assert seen == [("attached", 5), *events(4, 5), ("finished", 5)]


async def test_compacted_events_are_replaced_by_a_snapshot() -> None:
    imports = ImportServer()
    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        await imports.append(9)
        await imports.finish()
        imports.first_sequence = 7
        seen = await kinds_and_sequences(client, cursor=Cursor(sequence=2, log_id="log-1"))
    assert seen == [("attached", 10), ("snapshot", 10), ("finished", 10)]


async def test_silent_server_is_dropped_after_three_heartbeat_intervals() -> None:
    imports = ImportServer(heartbeat_seconds=0.05)
    dropped = asyncio.Event()

    async def silent(request: imports_pb2.WatchImportRequest) -> AsyncIterator[Response]:
        yield imports.attached()
        yield imports.event(1)
        try:
            await asyncio.Event().wait()
        finally:
            dropped.set()

    reconnections: list[Reconnecting] = []
    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        await imports.append(3)
        await imports.finish()
        imports.scripts.append(silent)
        seen = await kinds_and_sequences(client, cursor=REPLAY, reconnections=reconnections)
        async with asyncio.timeout(5):
            await dropped.wait()
    assert seen == [("attached", 4), *events(1, 4), ("finished", 4)]
    assert [each.cause.message for each in reconnections] == ["nothing arrived for 0.15 s"]


async def test_heartbeats_keep_a_quiet_stream() -> None:
    imports = ImportServer(heartbeat_seconds=0.05)

    async def quiet(request: imports_pb2.WatchImportRequest) -> AsyncIterator[Response]:
        yield imports.attached()
        clock = asyncio.get_running_loop().time
        # Twice as long as silence would be borne.
        quiet_until = clock() + 6 * imports.heartbeat_seconds
        while clock() < quiet_until:
            yield Response(heartbeat=job_pb2.Heartbeat(delivered_sequence=0))
        yield imports.event(1)
        yield Response(finished=imports.resource())

    reconnections: list[Reconnecting] = []
    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        await imports.finish()
        imports.scripts.append(quiet)
        seen = await kinds_and_sequences(client, cursor=REPLAY, reconnections=reconnections)
    assert seen == [("attached", 1), ("event", 1), ("finished", 1)]
    assert reconnections == []


async def test_frozen_connection_is_noticed_and_replaced() -> None:
    imports = ImportServer(heartbeat_seconds=0.05)
    async with (
        serving(imports=imports) as port,
        CuttingProxy(port) as proxy,
        quick_client(proxy.address) as client,
    ):
        await imports.append(1)
        items = client.datasets.watch_import(
            IMPORT, cursor=REPLAY, on_reconnecting=lambda _: (proxy.cut(), proxy.thaw())
        )
        async with aclosing(items):
            assert isinstance(await anext(items), Attached)
            assert isinstance(await anext(items), Event)
            proxy.freeze()
            await imports.finish()
            item = await anext(items)
            assert isinstance(item, Event)
            assert item.event.header.sequence == 2
            assert isinstance(await anext(items), Finished)


async def test_going_away_is_followed_after_its_delay() -> None:
    imports = ImportServer()

    async def draining(request: imports_pb2.WatchImportRequest) -> AsyncIterator[Response]:
        yield imports.attached()
        yield imports.event(1)
        yield Response(going_away=job_pb2.GoingAway(retry_after=Duration(nanos=50_000_000)))

    reconnections: list[Reconnecting] = []
    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        await imports.append(3)
        await imports.finish()
        imports.scripts.append(draining)
        seen = await kinds_and_sequences(client, cursor=REPLAY, reconnections=reconnections)
    assert seen == [("attached", 4), *events(1, 4), ("finished", 4)]
    assert [each.delay_seconds >= 0.05 for each in reconnections] == [True]
    assert [request.after_sequence for request in imports.requests] == [0, 1]
    assert [request.replay for request in imports.requests] == [True, False]


async def test_end_without_finished_is_a_loss() -> None:
    imports = ImportServer()

    async def ending(request: imports_pb2.WatchImportRequest) -> AsyncIterator[Response]:
        yield imports.attached()

    async with (
        serving(imports=imports) as port,
        quick_client(f"127.0.0.1:{port}", budget_seconds=0.02) as client,
    ):
        await imports.append(1)
        imports.scripts.extend([ending] * 100)
        with pytest.raises(TransportLost, match="ended too early"):
            await kinds_and_sequences(client, cursor=REPLAY)
    assert len(imports.requests) > 2


async def test_budget_is_renewed_by_each_new_event() -> None:
    imports = ImportServer()

    def one_event(sequence: int):  # type: ignore[no-untyped-def]
        async def script(request: imports_pb2.WatchImportRequest) -> AsyncIterator[Response]:
            assert request.after_sequence == sequence - 1
            yield imports.attached()
            yield imports.event(sequence)

        return script

    async with (
        serving(imports=imports) as port,
        quick_client(f"127.0.0.1:{port}", budget_seconds=0.05) as client,
    ):
        await imports.append(99)
        await imports.finish()
        imports.scripts.extend(one_event(sequence) for sequence in range(1, 100))
        seen = await kinds_and_sequences(client, cursor=REPLAY)
    # 99 losses with a mean delay of over 1 ms: together more than the budget.
    assert seen == [("attached", 100), *events(1, 100), ("finished", 100)]


async def test_replaced_log_starts_again_at_its_beginning_once() -> None:
    imports = ImportServer()
    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        await imports.append(2)
        await imports.finish()
        cursor = Cursor(sequence=2, log_id="log-0")
        seen = await kinds_and_sequences(client, cursor=cursor)
    assert seen == [("attached", 3), ("snapshot", 3), ("finished", 3)]


async def test_log_that_is_replaced_again_is_final() -> None:
    imports = ImportServer()
    refusal = status(grpc.StatusCode.OUT_OF_RANGE, reason="EVENT_LOG_CHANGED")

    class Refusing(ImportServer):
        async def WatchImport(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
            self.requests.append(request)
            await context.abort_with_status(refusal)
            yield

    imports = Refusing()
    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        with pytest.raises(OutOfRange):
            await kinds_and_sequences(client, cursor=Cursor(sequence=2, log_id="log-0"))
    assert [request.after_sequence for request in imports.requests] == [2, 0]


@pytest.mark.parametrize(
    ("code", "reason", "error"),
    [
        (grpc.StatusCode.NOT_FOUND, "JOB_EXPIRED", NotFound),
        (grpc.StatusCode.UNAVAILABLE, "SERVICE_UNREACHABLE", Unavailable),
    ],
)
async def test_our_own_error_is_raised_at_once(
    code: grpc.StatusCode, reason: str, error: type[Exception]
) -> None:
    class Refusing(ImportServer):
        async def WatchImport(self, request, context):  # type: ignore[no-untyped-def]  # noqa: N802
            self.requests.append(request)
            await context.abort_with_status(status(code, reason=reason))
            yield

    imports = Refusing()
    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        with pytest.raises(error):
            await kinds_and_sequences(client)
    assert len(imports.requests) == 1


@pytest.mark.parametrize("sequences", [(1, 3), (1, 1), (2,)], ids=str)
async def test_gap_or_repeat_is_raised_and_never_passed_on(sequences: tuple[int, ...]) -> None:
    imports = ImportServer()

    async def faulty(request: imports_pb2.WatchImportRequest) -> AsyncIterator[Response]:
        yield imports.attached()
        for sequence in sequences:
            yield Response(event=progress_event(sequence))

    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        await imports.append(5)
        imports.scripts.append(faulty)
        items = client.datasets.watch_import(IMPORT, cursor=REPLAY)
        # Attached, and the events before the fault.
        for _ in sequences:
            await anext(items)
        with pytest.raises(ContractViolated):
            await anext(items)


async def test_leaving_a_watch_ends_the_stream_and_not_the_job() -> None:
    imports = ImportServer()
    left = asyncio.Event()

    async def endless(request: imports_pb2.WatchImportRequest) -> AsyncIterator[Response]:
        try:
            async for message in imports.watch(0, replay=True):
                yield message
        finally:
            left.set()

    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        await imports.append(1)
        imports.scripts.append(endless)
        async with aclosing(client.datasets.watch_import(IMPORT, cursor=REPLAY)) as items:
            await anext(items)
        async with asyncio.timeout(5):
            await left.wait()
        assert imports.state == job_pb2.JOB_STATE_RUNNING


async def test_watches_do_not_share_the_connection_of_unary_calls() -> None:
    imports = ImportServer()
    async with serving(imports=imports) as port, quick_client(f"127.0.0.1:{port}") as client:
        await imports.finish()
        await kinds_and_sequences(client)
        await client.datasets.get_import(IMPORT)
    assert imports.peers["watch"].isdisjoint(imports.peers["unary"])
