"""What the options before a command mean."""

from __future__ import annotations

import pytest

from sfumato_client.cli.session import RetryPolicies


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
