import pytest

from sfumato.job.v1 import errors_pb2
from sfumato_chassis import errors
from sfumato_chassis.errors import CATALOGUE, JOB_REASONS, FieldViolation, Reason, SfumatoError
from sfumato_chassis.status import MAX_DETAIL_BYTES, to_status

PREFIX = "ERROR_REASON_"
LONG_TEXT = "\N{LATIN SMALL LETTER U WITH DIAERESIS}" * 5_000
MAX_TRAILER_BYTES = 8_192


def proto_reasons() -> set[str]:
    names = {name.removeprefix(PREFIX) for name in errors_pb2.ErrorReason.keys()}  # noqa: SIM118
    return names - {"UNSPECIFIED"}


def an_error(reason: Reason, text: str = "text") -> SfumatoError:
    """The error of a reason, with every detail its class takes."""
    kind = CATALOGUE[reason]
    if issubclass(kind, errors.ResourceError):
        return kind(reason, text, resource_type="import", resource_name=text)
    if issubclass(kind, errors.InvalidArgument):
        violations = [FieldViolation(path=text, message=text)] * 30
        return kind(reason, text, violations=violations)
    return kind(
        reason,
        text,
        details={"holder": text, **{f"fact_{index}": text for index in range(20)}},
        retry_after_seconds=1.5,
    )


def test_reasons_are_those_of_the_proto() -> None:
    assert {reason.value for reason in Reason} == proto_reasons()
    assert all(reason.name == reason.value for reason in Reason)


def test_every_reason_is_of_one_class_or_only_a_jobs() -> None:
    assert CATALOGUE.keys() | JOB_REASONS == set(Reason)
    assert not CATALOGUE.keys() & JOB_REASONS


def test_every_class_stands_for_a_status_of_its_own() -> None:
    statuses = [kind.status for kind in set(CATALOGUE.values())]
    assert len(statuses) == len(set(statuses))


@pytest.mark.parametrize("reason", sorted(CATALOGUE))
def test_every_reason_can_be_told(reason: Reason) -> None:
    told = to_status(an_error(reason))
    assert told.code.name == CATALOGUE[reason].status
    assert told.details == "text"
    assert reason.value.encode() in told.trailing_metadata[0][1]


@pytest.mark.parametrize("reason", sorted(CATALOGUE))
def test_the_reason_fits_however_long_the_rest_is(reason: Reason) -> None:
    told = to_status(an_error(reason, LONG_TEXT))
    ((_, details),) = told.trailing_metadata
    assert len(details) <= MAX_DETAIL_BYTES
    assert reason.value.encode() in details
    in_base64, percent_encoded = len(details) * 4 / 3, len(told.details.encode()) * 3
    assert in_base64 + percent_encoded < MAX_TRAILER_BYTES
    if issubclass(CATALOGUE[reason], errors.InvalidArgument):
        assert b"BadRequest" in details


@pytest.mark.parametrize("reason", sorted(JOB_REASONS))
def test_a_jobs_reason_is_never_a_calls(reason: Reason) -> None:
    with pytest.raises(TypeError, match="is not the class"):
        errors.Internal(reason, "text")


def test_a_reason_is_refused_by_another_class() -> None:
    with pytest.raises(TypeError, match="is not the class"):
        errors.Internal(Reason.DATASET_BUSY, "text")
