"""`make demo`: the main job on real pictures, and every RPC that it printed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from deployment import ServeProcess

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"
GRPCURL = Path(sys.executable).with_name("grpcurl")
METHODS = {
    *("CreateImport", "WatchImport", "CreateTrainingRun", "WatchTrainingRun", "ListTrainingRuns"),
    *(
        "GetTrainingRun",
        "GetAdapter",
        "CreateGeneration",
        "WatchGeneration",
        "ReadBlob",
        "ListImages",
    ),
}


@pytest.mark.slow
def test_the_demo_and_its_rpcs(tmp_path: Path) -> None:
    out = tmp_path / "out"
    finished = subprocess.run(
        [sys.executable, str(DEMO), "--out", str(out)], capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr
    with Image.open(out / "contact-sheet.png") as sheet:
        assert sheet.width > 3 * 128
        assert sheet.height > 4 * 128
    lines = (out / "rpcs.sh").read_text().splitlines()
    assert lines
    assert all(line in finished.stdout for line in lines)
    assert {line.rpartition("/")[2] for line in lines} == METHODS

    # The services are up again on what the demo left: each RPC still answers, creates as repeats.
    server = ServeProcess(out / "data")
    server.start()
    try:
        for line in lines:
            words = shlex.split(line)
            assert words[0] == "grpcurl"
            words[-2] = server.address
            again = subprocess.run([str(GRPCURL), *words[1:]], capture_output=True, text=True)
            assert again.returncode == 0, f"{line}\n{again.stderr}"
            if "/Create" in line:
                assert '"deduplicated": true' in again.stdout
    finally:
        server.stop()
