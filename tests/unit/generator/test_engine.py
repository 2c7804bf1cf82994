"""What follows when a worker is gone, and how reports are appended."""

from datetime import UTC, datetime

import pytest

from sfumato_chassis.errors import Reason
from sfumato_chassis.jobs import InterruptionPolicy, Job, JobState, NewEvent
from sfumato_generator.engine import MAX_ATTEMPTS, SERVICE_STOPPED, WORKER_DIED, batches, end_of

AUTO, MANUAL = InterruptionPolicy.AUTO, InterruptionPolicy.MANUAL


def job(policy, *, state=JobState.RUNNING, attempt=1):
    return Job(
        name="generation-1",
        ordinal=1,
        kind="generation",
        owner="local",
        state=state,
        interruption_policy=policy,
        failure=None,
        log_id="log-1",
        first_sequence=1,
        last_sequence=2,
        attempt=attempt,
        fence=attempt,
        queue_position=0,
        create_time=datetime(2026, 1, 1, tzinfo=UTC),
        start_time=None,
        end_time=None,
        expire_time=None,
    )


@pytest.mark.parametrize(
    ("policy", "failure", "kind", "retrying"),
    [
        (MANUAL, WORKER_DIED, "failed", None),
        (AUTO, WORKER_DIED, "interrupted", True),
        (MANUAL, SERVICE_STOPPED, "interrupted", False),
        (AUTO, SERVICE_STOPPED, "interrupted", True),
    ],
)
def test_the_end_follows_from_policy_and_cause(policy, failure, kind, retrying):
    end = end_of(job(policy), failure)
    assert (end.kind, end.data.get("retrying")) == (kind, retrying)


@pytest.mark.parametrize("failure", [WORKER_DIED, SERVICE_STOPPED])
def test_a_cancel_that_was_accepted_wins(failure):
    assert end_of(job(AUTO, state=JobState.CANCELLING), failure).kind == "cancelled"


def test_workers_that_die_again_and_again():
    end = end_of(job(AUTO, attempt=MAX_ATTEMPTS), WORKER_DIED)
    assert end.kind == "failed"
    assert end.data["reason"] == Reason.WORKER_DIED_REPEATEDLY
    assert end_of(job(AUTO, attempt=MAX_ATTEMPTS), SERVICE_STOPPED).kind == "interrupted"


def test_each_image_is_appended_on_its_own():
    kinds = ["step", "image_saved", "image_saved", "step", "image_saved", "succeeded"]
    events = [(number, NewEvent(kind=kind)) for number, kind in enumerate(kinds, start=1)]
    split = [[event.kind for _, event in batch] for batch in batches(events)]

    assert split == [
        ["step"],
        ["image_saved"],
        ["image_saved", "step"],
        ["image_saved", "succeeded"],
    ]
    assert batches([]) == [[]]
