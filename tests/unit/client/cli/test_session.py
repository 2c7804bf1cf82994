"""What the options before a command mean."""

from __future__ import annotations

import pytest

from sfumato_client import Connection
from sfumato_client.cli.session import RetryPolicies, Session


@pytest.mark.parametrize(
    ("seconds", "attempt_seconds"), [(0.0, 5.0), (0.1, 5.0), (12.0, 12.0), (3600.0, 20.0)]
)
def test_one_number_bounds_calls_and_watches(seconds: float, attempt_seconds: float) -> None:
    policies = RetryPolicies.within(seconds)
    for policy in (policies.calls, policies.watches):
        assert policy.budget_seconds == seconds
        assert policy.attempt_timeout_seconds == attempt_seconds


def test_a_watch_is_more_patient_unless_told_otherwise() -> None:
    policies = RetryPolicies()
    assert (policies.calls.budget_seconds, policies.watches.budget_seconds) == (10.0, 300.0)


@pytest.mark.parametrize(
    ("arguments", "again"),
    [
        (("generate", "a cat"), "sfumato generate 'a cat' --request-id ID"),
        (
            ("generate", "--out", "o", "--", "-cat"),
            "sfumato generate --out o --request-id ID -- -cat",
        ),
        (("generate", "--request-id", "mine", "x"), "sfumato generate --request-id mine x"),
        (("generate", "--request-id=mine", "x"), "sfumato generate --request-id=mine x"),
        (("generate", "--", "--request-id"), "sfumato generate --request-id ID -- --request-id"),
    ],
)
def test_a_command_is_repeated_with_its_request_id(arguments: tuple[str, ...], again: str) -> None:
    assert session(*arguments).repeated_with("ID") == again


def test_a_command_of_the_same_group_has_the_same_options() -> None:
    typed = ("--address", "host:1", "--json", "train", "start", "cats", "--model", "train")
    again = "sfumato --address host:1 --json train watch run-1"
    assert session(*typed).in_group("train", "watch", "run-1") == again


def session(*arguments: str) -> Session:
    return Session(
        connection=Connection(),
        retries=RetryPolicies(),
        as_json=False,
        trace=False,
        arguments=arguments,
    )
