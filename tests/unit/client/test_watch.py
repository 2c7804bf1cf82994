"""What reaches the caller of a watch, and what is a fault of the server."""

from __future__ import annotations

import pytest

from sfumato.datasets.v1 import imports_pb2
from sfumato.job.v1 import job_pb2
from sfumato_client.errors import ContractViolated
from sfumato_client.watch import Cursor, EventOrder

Order = EventOrder[imports_pb2.Import, imports_pb2.ImportEvent]


def attached(last: int, *, first: int = 1, log_id: str = "log") -> job_pb2.Attached:
    return job_pb2.Attached(
        status=job_pb2.JobStatus(last_sequence=last, first_sequence=first, log_id=log_id)
    )


def resource(last: int) -> imports_pb2.Import:
    return imports_pb2.Import(status=job_pb2.JobStatus(last_sequence=last))


def event(sequence: int) -> imports_pb2.ImportEvent:
    return imports_pb2.ImportEvent(header=job_pb2.EventHeader(sequence=sequence))


def replaying(*, after: int = 0, last: int = 9) -> Order:
    """An order that has seen `after` events of a log of `last`."""
    order: Order = EventOrder(Cursor(replay=True))
    order.attach(attached(last))
    for sequence in range(1, after + 1):
        order.event(event(sequence))
    return order


def test_events_move_the_cursor() -> None:
    order = replaying(after=3)
    assert order.cursor == Cursor(sequence=3, log_id="log", replay=False)


@pytest.mark.parametrize("sequence", [1, 2, 3, 5, 6])
def test_only_the_next_event_is_passed_on(sequence: int) -> None:
    order = replaying(after=3)
    with pytest.raises(ContractViolated, match="event 4 was due"):
        order.event(event(sequence))


def test_attached_comes_once() -> None:
    order = replaying(after=3)
    assert order.attach(attached(9)) is None


def test_another_log_under_the_same_cursor_is_a_fault() -> None:
    order = replaying(after=3)
    with pytest.raises(ContractViolated, match="other"):
        order.attach(attached(9, log_id="other"))


def test_a_log_that_lost_events_is_a_fault() -> None:
    order = replaying(after=3)
    with pytest.raises(ContractViolated, match="ends at 2"):
        order.attach(attached(2))


def test_snapshot_stands_for_the_events_before_it() -> None:
    order: Order = EventOrder(Cursor())
    order.attach(attached(5))
    assert order.snapshot(resource(5)) is not None
    assert order.cursor.sequence == 5
    order.event(event(6))


def test_same_snapshot_is_not_passed_on_twice() -> None:
    order: Order = EventOrder(Cursor())
    order.attach(attached(0))
    assert order.snapshot(resource(0)) is not None
    order.attach(attached(0))
    assert order.snapshot(resource(0)) is None


def test_snapshot_may_replace_compacted_events() -> None:
    order = replaying(after=3)
    order.attach(attached(9, first=6))
    assert order.snapshot(resource(9)) is not None
    order.event(event(10))


def test_snapshot_must_not_replace_events_that_are_in_the_log() -> None:
    order = replaying(after=3)
    order.attach(attached(9, first=4))
    with pytest.raises(ContractViolated, match="4 to 9"):
        order.snapshot(resource(9))


def test_snapshot_must_not_replace_a_replay() -> None:
    order = replaying()
    with pytest.raises(ContractViolated):
        order.snapshot(resource(9))


def test_snapshot_from_the_past_is_a_fault() -> None:
    order = replaying(after=3)
    with pytest.raises(ContractViolated):
        order.snapshot(resource(2))


def test_heartbeat_that_counts_more_than_arrived_is_a_fault() -> None:
    order = replaying(after=3)
    order.heartbeat(job_pb2.Heartbeat(delivered_sequence=3))
    with pytest.raises(ContractViolated):
        order.heartbeat(job_pb2.Heartbeat(delivered_sequence=4))


@pytest.mark.parametrize("last", [2, 4])
def test_finished_must_follow_the_last_event(last: int) -> None:
    order = replaying(after=3)
    with pytest.raises(ContractViolated):
        order.finish(resource(last))


def test_restart_forgets_the_log_and_keeps_the_wish_to_replay() -> None:
    order = replaying(after=3).restarted()
    assert order.cursor == Cursor(replay=True)
    assert order.attach(attached(1, log_id="new")) is not None
    order.event(event(1))
