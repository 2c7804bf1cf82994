"""What Parquet of strangers may not do, and that nothing is left of the process that read it."""

import errno
import json
import os
import random
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from parquet_bench import LIMITS, ParquetBench, features, hub_column, never
from sfumato_datasets import parquet
from sfumato_datasets.parquet import (
    ExtractedRows,
    ParquetCancelledError,
    ParquetDamagedError,
    ParquetError,
    ParquetLimits,
    ParquetQuery,
    ParquetStartError,
    ParquetTooLargeError,
    extract_rows,
)


@pytest.fixture
def bench(tmp_path: Path) -> ParquetBench:
    return ParquetBench.in_folder(tmp_path / "bench")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The processes that were started; each has ended when the test has."""
    processes: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            processes.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    yield processes
    assert processes
    assert all(process.returncode is not None for process in processes)


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1PAR1", b"\x89PNG", b"PAR1" * 1000])
def test_what_is_no_parquet(bench: ParquetBench, content: bytes) -> None:
    bench.file.write_bytes(content)
    with pytest.raises(ParquetDamagedError) as refusal:
        bench.extract()
    assert str(bench.folder) not in str(refusal.value)


def test_what_is_no_file(bench: ParquetBench) -> None:
    os.mkfifo(bench.file)
    with pytest.raises(ParquetDamagedError):
        bench.extract()
    bench.file.unlink()
    with pytest.raises(ParquetDamagedError) as refusal:
        extract_rows(
            bench.file,
            bench.pack,
            ParquetQuery(image_column=None, caption_column="text", max_rows=None),
            LIMITS,
            cancelled=never,
        )
    assert str(bench.folder) not in str(refusal.value)
    assert not bench.pack.exists()


def test_truncation_and_flipped_bytes_end_in_rows_or_a_refusal(bench: ParquetBench) -> None:
    generator = random.Random(11)
    columns = {"image": hub_column(40), "text": [["a", "b"]] * 40, "tags": [["c"]] * 40}
    originals = []
    for options in (
        {"compression": "none"},
        {"compression": "snappy", "use_dictionary": False},
        {"compression": "zstd", "row_group_size": 10, "data_page_version": "2.0"},
    ):
        bench.write(columns, features("image"), **options)
        originals.append(bench.file.read_bytes())
    damaged = [original[: len(original) * part // 7] for original in originals for part in range(7)]
    for _ in range(30):
        data = bytearray(generator.choice(originals))
        for _ in range(generator.choice((1, 1, 8))):
            data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        damaged.append(bytes(data))
    outcomes = set()
    told = []
    for data in damaged:
        bench.file.write_bytes(data)
        try:
            bench.images(bench.extract())
            outcomes.add(ExtractedRows)
        except ParquetError as error:
            told.append(str(error))
            outcomes.add(type(error))
    assert {ExtractedRows, ParquetDamagedError} <= outcomes
    assert not any(str(bench.folder) in message for message in told)


def test_more_bytes_than_allowed(bench: ParquetBench) -> None:
    bench.write({"image": [b"x" * 100] * 1000, "text": ["y" * 100] * 1000})
    assert len(bench.extract(limits=ParquetLimits(max_bytes=100_000)).rows) == 1000
    for limits, what in (
        (ParquetLimits(max_bytes=99_999), "images"),
        (ParquetLimits(max_bytes=100_000, max_text_bytes=100_000), "captions"),
    ):
        with pytest.raises(ParquetTooLargeError, match=what):
            bench.extract(limits=limits)


def test_more_rows_than_allowed(bench: ParquetBench) -> None:
    bench.write({"image": pa.nulls(1000, pa.binary())})
    limits = ParquetLimits(max_bytes=1000, max_rows=999)
    with pytest.raises(ParquetTooLargeError, match="more than 999 rows"):
        bench.extract(limits=limits)
    assert len(bench.extract(limits=limits, max_rows=999).rows) == 999


@pytest.mark.parametrize("use_dictionary", [True, False])
def test_what_expands_to_more_memory_than_allowed(
    bench: ParquetBench, use_dictionary: bool
) -> None:
    zeros = [bytes(200 << 20)]
    bench.write({"image": zeros}, compression="zstd", use_dictionary=use_dictionary)
    assert bench.file.stat().st_size < 1 << 20
    with pytest.raises(ParquetTooLargeError, match="memory"):
        bench.extract(limits=ParquetLimits(max_bytes=1 << 30, memory_limit_bytes=450 << 20))


def test_taking_too_long(bench: ParquetBench, started: list[subprocess.Popen[bytes]]) -> None:
    bench.write({"image": [b"a"]})
    seconds = iter((0.0, 3600.0, 3601.0))

    def stop() -> bool:
        os.kill(started[0].pid, signal.SIGSTOP)
        return False

    with pytest.raises(ParquetTooLargeError, match="longer than 3600 s"):
        bench.extract(cancelled=stop, monotonic=lambda: next(seconds))
    assert started[0].returncode == -signal.SIGKILL


def test_cancelling_ends_the_process(
    bench: ParquetBench, started: list[subprocess.Popen[bytes]]
) -> None:
    bench.write({"image": [b"a"]})
    asked = []

    def stop() -> bool:
        os.kill(started[0].pid, signal.SIGSTOP)
        asked.append(True)
        return len(asked) == 3

    with pytest.raises(ParquetCancelledError):
        bench.extract(cancelled=stop)
    assert started[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("end", "refusal"),
    [
        (signal.SIGKILL, ParquetTooLargeError),
        (signal.SIGXFSZ, ParquetTooLargeError),
        (signal.SIGSEGV, ParquetDamagedError),
        (signal.SIGABRT, ParquetDamagedError),
    ],
)
def test_a_process_that_a_signal_ends(
    bench: ParquetBench,
    started: list[subprocess.Popen[bytes]],
    monkeypatch: pytest.MonkeyPatch,
    end: signal.Signals,
    refusal: type[ParquetError],
) -> None:
    """One in the reader's place, as no file is known that ends the reader so."""
    bench.write({"image": [b"a"]})
    script = (
        "import os, signal\n"
        f"if {int(end)} != signal.SIGKILL: signal.signal({int(end)}, signal.SIG_DFL)\n"
        f"os.kill(os.getpid(), {int(end)})\n"
    )
    wrapper = bench.folder.parent / "python"
    wrapper.write_text(f"#!{sys.executable}\n{script}")
    wrapper.chmod(0o755)
    monkeypatch.setattr(parquet.sys, "executable", str(wrapper))
    with pytest.raises(refusal):
        bench.extract()
    assert started[0].returncode == -end


def test_a_full_disk_is_no_fault_of_the_file(
    bench: ParquetBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write({"image": [b"a"]})
    wrapper = bench.folder.parent / "python"
    wrapper.write_text(f"#!/bin/sh\nexit {errno.ENOSPC}\n")
    wrapper.chmod(0o755)
    monkeypatch.setattr(parquet.sys, "executable", str(wrapper))
    with pytest.raises(OSError, match="No space left") as failure:
        bench.extract()
    assert failure.value.errno == errno.ENOSPC


def run_by_hand(file: Path, pack_descriptor: int) -> subprocess.CompletedProcess[bytes]:
    request = {
        "query": {"image_column": None, "caption_column": "text", "max_rows": None},
        "limits": {"max_bytes": 1 << 20},
        "pack_descriptor": pack_descriptor,
        "parent_process_id": os.getpid(),
    }
    with file.open("rb") as source:
        return subprocess.run(
            [sys.executable, "-m", "sfumato_datasets.parquet_process", json.dumps(request)],
            stdin=source,
            capture_output=True,
            pass_fds=(pack_descriptor,),
        )


def test_a_pack_that_cannot_be_written_is_told_by_the_exit_status(bench: ParquetBench) -> None:
    bench.write({"image": [b"a" * 100_000]})
    with bench.file.open("rb") as read_only:
        assert run_by_hand(bench.file, read_only.fileno()).returncode == errno.EBADF


def test_a_process_that_cannot_start_blames_no_file(
    bench: ParquetBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write({"image": [b"a"]})
    monkeypatch.setenv("PYTHONHOME", str(bench.folder))
    with pytest.raises(ParquetStartError):
        bench.extract()


def test_a_pack_that_is_there_already_is_left_alone(bench: ParquetBench) -> None:
    bench.write({"image": [b"a"]})
    bench.pack.write_bytes(b"mine")
    query = ParquetQuery(image_column=None, caption_column="text", max_rows=None)
    with pytest.raises(FileExistsError):
        extract_rows(bench.file, bench.pack, query, LIMITS, cancelled=never)
    assert bench.pack.read_bytes() == b"mine"


def test_it_ends_with_the_process_that_started_it(bench: ParquetBench) -> None:
    """The reader is stopped before it reads, and finds itself alone when it goes on."""
    bench.write({"image": [b"a" * 1000] * 1000})
    script = (
        "import os, signal, subprocess, sys\n"
        "from pathlib import Path\n"
        "from sfumato_datasets.parquet import *\n"
        "started = []\n"
        "class Recorded(subprocess.Popen):\n"
        "    def __init__(self, *args, **options):\n"
        "        super().__init__(*args, **options)\n"
        "        started.append(self.pid)\n"
        "subprocess.Popen = Recorded\n"
        "def leave():\n"
        "    os.kill(started[0], signal.SIGSTOP)\n"
        "    print(started[0], flush=True)\n"
        "    input()\n"
        "    os._exit(0)\n"
        "query = ParquetQuery(image_column=None, caption_column='text', max_rows=None)\n"
        "file, pack = map(Path, sys.argv[1:])\n"
        "extract_rows(file, pack, query, ParquetLimits(max_bytes=1 << 20), cancelled=leave)\n"
    )
    command = [sys.executable, "-c", script, str(bench.file), str(bench.pack)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        process_id = int(parent.stdout.readline())
        descriptor = os.pidfd_open(process_id)
        parent.communicate(b"\n")
    os.kill(process_id, signal.SIGCONT)
    ended, _, _ = select.select([descriptor], [], [], 60)
    os.close(descriptor)
    assert ended
    assert bench.pack.stat().st_size == 0


def test_the_service_does_not_load_arrow() -> None:
    script = "import sys, sfumato_datasets.parquet; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
