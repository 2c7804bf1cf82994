"""What the process of `sfumato serve` has loaded once it is ready."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sfumato_chassis.serve import SERVICES

HEAVY = {"torch", "diffusers", "transformers", "peft", "accelerate", "safetensors"}
SLOW_TO_START = {"typer", "rich", "alembic", "mako", "PIL", "numpy"}
PROGRAM = """
import json, os, signal, sys
from sfumato_chassis import serve

class ReadyThenStop:
    def write(self, text):
        self.modules = sorted(sys.modules)
        os.kill(os.getpid(), signal.SIGTERM)

    def flush(self):
        return None

sys.stdout = ready = ReadyThenStop()
code = serve.main(sys.argv[1:])
json.dump({"code": code, "modules": ready.modules}, sys.__stdout__)
"""


@pytest.mark.parametrize("only", [*SERVICES, None])
def test_a_service_loads_nothing_heavy(tmp_path: Path, only: str | None) -> None:
    arguments = ["--port", "0", "--data-dir", str(tmp_path)] + (["--only", only] if only else [])
    # Nothing listens there; a service alone must only be told where the others are.
    addresses = {f"SFUMATO_ADDRESSES_{name.upper()}": "127.0.0.1:1" for name in SERVICES if only}
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, **addresses},
    )
    report = json.loads(ended.stdout)
    assert report["code"] == 0, ended.stderr
    loaded = {name.partition(".")[0] for name in report["modules"]}
    assert not loaded & HEAVY
    assert not loaded & SLOW_TO_START
    # Another service is called when there is work, not before.
    assert "sfumato_client" not in loaded
    others = {f"sfumato_{name}.app" for name in SERVICES if only and name != only}
    assert not others & set(report["modules"])
