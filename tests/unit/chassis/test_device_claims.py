from contextlib import closing
from pathlib import Path

import pytest

from sfumato_chassis.config import ConfigError
from sfumato_chassis.device_claims import claim_device, claims_folder
from sfumato_chassis.executor import LocalExecutor, WorkerSpec

DEVICE = "cuda:0"
A, B = Path("/data/a"), Path("/data/b")


def test_services_of_one_database_share_a_device(tmp_path: Path) -> None:
    with (
        closing(claim_device(tmp_path, DEVICE, A)),
        closing(claim_device(tmp_path, DEVICE, A)),
    ):
        assert len(list(tmp_path.iterdir())) == 1


def test_another_database_is_refused_until_the_last_claim_has_gone(tmp_path: Path) -> None:
    first = claim_device(tmp_path, DEVICE, A)
    second = claim_device(tmp_path, DEVICE, A)
    for claim in (first, second):
        with pytest.raises(ConfigError, match=r"device cuda:0: .* in use with /data/a"):
            claim_device(tmp_path, DEVICE, B)
        claim.close()
    with closing(claim_device(tmp_path, DEVICE, B)), pytest.raises(ConfigError):
        claim_device(tmp_path, DEVICE, A)


def test_devices_are_claimed_apart(tmp_path: Path) -> None:
    with (
        closing(claim_device(tmp_path, DEVICE, A)),
        closing(claim_device(tmp_path, "cuda:1", B)),
    ):
        assert len(list(tmp_path.iterdir())) == 2


def test_claims_lie_in_the_users_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    assert claims_folder() == tmp_path / ".local" / "state" / "sfumato"
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert claims_folder() == tmp_path / "state" / "sfumato"


async def test_a_worker_holds_the_claim_of_its_service(tmp_path: Path) -> None:
    executor = LocalExecutor(threads=1)
    claim = claim_device(tmp_path / "claims", DEVICE, A)
    executor.hand_on(claim)
    (tmp_path / "patient_worker.py").write_text("import sys, time; time.sleep(600)")
    environment = {"PYTHONPATH": str(tmp_path)}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(*environment.popitem())
        worker = await executor.start(
            WorkerSpec(
                worker_id="worker-1",
                module="patient_worker",
                configuration={},
                configuration_file=tmp_path / "worker.json",
                log_folder=tmp_path,
            )
        )
    claim.close()
    with pytest.raises(ConfigError):
        claim_device(tmp_path / "claims", DEVICE, B)
    executor.kill(worker)
    await executor.wait(worker)
    claim_device(tmp_path / "claims", DEVICE, B).close()
