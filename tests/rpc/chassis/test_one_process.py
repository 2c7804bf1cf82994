"""A service of a data folder runs in one process only."""

import subprocess
import sys
from pathlib import Path

from deployment import ServeProcess
from sfumato_chassis.exit_codes import MISCONFIGURED


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    first = ServeProcess(tmp_path, only=("datasets",))
    first.start()
    command = [sys.executable, "-m", "sfumato_datasets", "--data-dir", str(tmp_path), "--port", "0"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode == MISCONFIGURED
    assert "runs already" in refused.stderr
    first.kill()
    first.start()
    assert first.stop() == 0
