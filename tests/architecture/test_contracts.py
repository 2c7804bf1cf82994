"""Each import contract holds, and is seen to fail when it is broken on purpose."""

import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "sfumato": "protos/gen",
    "sfumato_chassis": "libs/chassis",
    "sfumato_diffusion": "libs/diffusion",
    "sfumato_imaging": "libs/imaging",
    "sfumato_client": "clients/python",
    "sfumato_datasets": "services/datasets",
    "sfumato_trainer": "services/trainer",
    "sfumato_generator": "services/generator",
}
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]
NAMES = {contract["id"]: contract["name"] for contract in CONTRACTS}


@dataclass(frozen=True, kw_only=True)
class Breach:
    """One line that must break a contract, and no other."""

    contract: str
    module: str
    line: str


BREACHES = [
    Breach(
        contract="services",
        module="sfumato_trainer/storage.py",
        line="import sfumato_datasets.names",
    ),
    Breach(
        contract="services",
        module="sfumato_chassis/clock.py",
        line="import sfumato_client.errors",
    ),
    Breach(
        contract="datasets-layers",
        module="sfumato_datasets/storage.py",
        line="import sfumato_datasets.engine",
    ),
    Breach(contract="datasets-layers", module="sfumato_datasets/stray.py", line="import os"),
    Breach(
        contract="trainer-layers",
        module="sfumato_trainer/engine.py",
        line="import sfumato_trainer.servicer",
    ),
    Breach(contract="trainer-layers", module="sfumato_trainer/stray.py", line="import os"),
    Breach(
        contract="generator-layers",
        module="sfumato_generator/config.py",
        line="import sfumato_generator.storage",
    ),
    Breach(contract="generator-layers", module="sfumato_generator/stray.py", line="import os"),
    Breach(contract="light", module="sfumato_chassis/clock.py", line="import torch"),
    Breach(contract="light", module="sfumato_imaging/geometry.py", line="import diffusers"),
    Breach(contract="light", module="sfumato_datasets/names.py", line="import transformers"),
    Breach(contract="light", module="sfumato_client/errors.py", line="import peft"),
    Breach(contract="light", module="sfumato_trainer/storage.py", line="import torch"),
    Breach(contract="light", module="sfumato_generator/storage.py", line="import torch"),
    Breach(contract="numeric", module="sfumato_diffusion/schedule.py", line="import grpc"),
    Breach(
        contract="numeric",
        module="sfumato_trainer/stages/sampler.py",
        line="from google.protobuf import json_format",
    ),
    Breach(contract="numeric", module="sfumato_generator/recipe.py", line="import grpc"),
    Breach(contract="domain", module="sfumato_trainer/engine.py", line="import grpc"),
    Breach(
        contract="domain",
        module="sfumato_datasets/storage.py",
        line="from google.protobuf import json_format",
    ),
    Breach(
        contract="generated",
        module="sfumato_datasets/storage.py",
        line="from sfumato.job.v1 import job_pb2",
    ),
    Breach(
        contract="generated",
        module="sfumato_trainer/engine.py",
        line="from sfumato.job.v1 import job_pb2",
    ),
    Breach(contract="imaging", module="sfumato_imaging/colour.py", line="import structlog"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of every package and of the contracts."""
    for package, folder in PACKAGES.items():
        shutil.copytree(
            ROOT / folder / package,
            tmp_path / package,
            ignore=shutil.ignore_patterns("__pycache__", "*.pyi"),
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def broken_contracts(tree: Path) -> set[str]:
    """Ids of the contracts that do not hold in a copy."""
    linted = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=tree,
        # The copy comes before the installed packages.
        env={**os.environ, "PYTHONPATH": str(tree), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    lines = linted.stdout.splitlines()
    verdicts = {
        identifier: next(
            line.removeprefix(name).split()[0] for line in lines if line.startswith(f"{name} ")
        )
        for identifier, name in NAMES.items()
        if any(line.startswith(f"{name} ") for line in lines)
    }
    assert verdicts.keys() == NAMES.keys(), linted.stdout + linted.stderr
    broken = {identifier for identifier, verdict in verdicts.items() if verdict == "BROKEN"}
    assert (linted.returncode != 0) == bool(broken)
    return broken


def test_every_contract_holds(tree: Path) -> None:
    assert broken_contracts(tree) == set()


def test_every_contract_is_broken_below() -> None:
    assert {breach.contract for breach in BREACHES} == NAMES.keys()


@pytest.mark.parametrize(
    "breach", BREACHES, ids=lambda breach: f"{breach.contract}-{breach.module}-{breach.line}"
)
def test_a_breach_is_found(tree: Path, breach: Breach) -> None:
    path = tree / breach.module
    before = path.read_text() if path.exists() else ""
    path.write_text(f"{before}\n{breach.line}\n")
    assert breach.contract in broken_contracts(tree)


def test_every_package_is_under_contract() -> None:
    found = {path.parent.name for path in ROOT.glob("*/*/sfumato*/__init__.py")}
    assert found | {"sfumato"} == PACKAGES.keys()
