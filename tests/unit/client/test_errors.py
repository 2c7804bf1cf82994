"""The rule that tells a lost response from a refusal, as a table."""

from __future__ import annotations

import grpc
import pytest

from sfumato.job.v1 import errors_pb2
from sfumato_client import errors
from sfumato_client.errors import ERROR_CLASSES, Loss, Refusal, RetryAfter, classify
from statuses import rpc_error

CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
FINAL = {
    "INVALID_ARGUMENT",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "NOT_FOUND",
    "UNIMPLEMENTED",
    "FAILED_PRECONDITION",
}
REASONS = [
    name.removeprefix("ERROR_REASON_")
    for name in errors_pb2.ErrorReason.DESCRIPTOR.values_by_name
    if not name.endswith("_UNSPECIFIED")
]


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_without_our_error_info_only_final_codes_are_refusals(code: grpc.StatusCode) -> None:
    outcome = classify(rpc_error(code))
    assert isinstance(outcome, Refusal if code.name in FINAL else Loss)
    assert outcome.error.reason == ""


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_error_info_of_another_domain_counts_for_nothing(code: grpc.StatusCode) -> None:
    outcome = classify(rpc_error(code, reason="SERVER_DRAINING", domain="proxy.example"))
    assert isinstance(outcome, Refusal if code.name in FINAL else Loss)


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_with_our_error_info_every_code_is_a_refusal(code: grpc.StatusCode) -> None:
    outcome = classify(rpc_error(code, reason="INTERNAL"))
    assert isinstance(outcome, Refusal)
    assert not isinstance(outcome.error, errors.TransportLost)
    assert outcome.error.reason == "INTERNAL"


@pytest.mark.parametrize("reason", REASONS)
def test_only_draining_and_starting_are_tried_again(reason: str) -> None:
    outcome = classify(rpc_error(grpc.StatusCode.UNAVAILABLE, reason=reason))
    retried = reason in {"SERVER_DRAINING", "SERVER_STARTING"}
    assert isinstance(outcome, RetryAfter if retried else Refusal)
    assert isinstance(outcome.error, errors.Unavailable)


def test_retry_delay_is_read_to_the_nanosecond() -> None:
    error = rpc_error(
        grpc.StatusCode.UNAVAILABLE, reason="SERVER_DRAINING", retry_delay_seconds=2.25
    )
    assert classify(error).error.retry_delay_seconds == 2.25


def test_every_code_has_a_class() -> None:
    assert set(ERROR_CLASSES) == set(CODES)


def test_every_code_but_unknown_has_a_class_of_its_own() -> None:
    known = {code: kind for code, kind in ERROR_CLASSES.items() if code.name != "UNKNOWN"}
    assert len(set(known.values())) == len(known)
    assert ERROR_CLASSES[grpc.StatusCode.CANCELLED] is errors.Cancelled


def test_tree_in_the_docstring_is_the_tree() -> None:
    drawn = {
        line.split()[1]
        for line in (errors.__doc__ or "").splitlines()
        if line.startswith(("├──", "└──"))
    }
    assert drawn == {kind.__name__ for kind in errors.SfumatoError.__subclasses__()}


def test_details_are_read() -> None:
    error = classify(
        rpc_error(
            grpc.StatusCode.INVALID_ARGUMENT,
            reason="FIELD_INVALID",
            message="two fields are wrong",
            fields={"configuration.rank": "at most 320", "configuration.seed": "at least 0"},
            details={"error_id": "abc", "holder": "run-1"},
        )
    ).error
    assert isinstance(error, errors.InvalidArgument)
    assert error.message == "two fields are wrong"
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [(each.field, each.description) for each in error.field_violations] == [
        ("configuration.rank", "at most 320"),
        ("configuration.seed", "at least 0"),
    ]
    assert error.error_id == "abc"
    assert error.details["holder"] == "run-1"
    assert str(error) == (
        "FIELD_INVALID: two fields are wrong\n"
        "configuration.rank: at most 320\n"
        "configuration.seed: at least 0"
    )


def test_damaged_details_count_as_none() -> None:
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE,
        initial_metadata=grpc.aio.Metadata(),
        trailing_metadata=grpc.aio.Metadata((errors.STATUS_DETAILS_KEY, b"\xff\xff\xff")),
        details="cut",
    )
    assert isinstance(classify(error), Loss)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "SERVER: Received message larger than max (5000000 vs. 4194304)",
            "the request takes 5000000 bytes, and the server takes 4194304 at most",
        ),
        (
            "Stream removed (CLIENT: Received message larger than max (5000000 vs. 4194304))",
            "the answer takes 5000000 bytes, and this client takes 4194304 at most",
        ),
    ],
)
def test_a_message_that_is_too_large_is_refused_and_not_lost(text: str, told: str) -> None:
    outcome = classify(rpc_error(grpc.StatusCode.RESOURCE_EXHAUSTED, message=text))
    assert isinstance(outcome, Refusal)
    assert isinstance(outcome.error, errors.ResourceExhausted)
    assert outcome.error.message == told
