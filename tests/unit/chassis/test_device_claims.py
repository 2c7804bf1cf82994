from contextlib import closing
from pathlib import Path

import pytest

from sfumato_chassis.config import ConfigError
from sfumato_chassis.device_claims import claim_device, claims_folder

DEVICE = "cuda:0"


def test_services_of_one_database_share_a_device(tmp_path: Path) -> None:
    with (
        closing(claim_device(tmp_path, DEVICE, "sqlite:///a")),
        closing(claim_device(tmp_path, DEVICE, "sqlite:///a")),
    ):
        assert len(list(tmp_path.iterdir())) == 1


def test_another_database_is_refused_until_the_last_claim_has_gone(tmp_path: Path) -> None:
    first = claim_device(tmp_path, DEVICE, "sqlite:///a")
    second = claim_device(tmp_path, DEVICE, "sqlite:///a")
    for claim in (first, second):
        with pytest.raises(ConfigError, match=r"device cuda:0: .* in use with sqlite:///a"):
            claim_device(tmp_path, DEVICE, "sqlite:///b")
        claim.close()
    with closing(claim_device(tmp_path, DEVICE, "sqlite:///b")), pytest.raises(ConfigError):
        claim_device(tmp_path, DEVICE, "sqlite:///a")


def test_devices_are_claimed_apart(tmp_path: Path) -> None:
    with (
        closing(claim_device(tmp_path, DEVICE, "sqlite:///a")),
        closing(claim_device(tmp_path, "cuda:1", "sqlite:///b")),
    ):
        assert len(list(tmp_path.iterdir())) == 2


def test_claims_lie_in_the_users_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert claims_folder() == tmp_path / ".local" / "state" / "sfumato"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert claims_folder() == tmp_path / "state" / "sfumato"
