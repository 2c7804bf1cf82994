"""The command line where the machine it runs on is at fault: files, text, pipes, Ctrl-C, a lost server."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from command_line import CommandLine, Services
from cutting_proxy import CuttingProxy
from import_server import IMPORT, Response
from model_servers import IMAGE, RUN
from sfumato.datasets.v1 import imports_pb2

NOT_UTF8 = "a \udcff cat"
COMMAND = [sys.executable, "-m", "sfumato_client.cli.main"]


@pytest.mark.parametrize(
    "words",
    [
        ("--address", NOT_UTF8, "train", "list"),
        ("datasets", "import", "{folder}", NOT_UTF8),
        ("datasets", "import", "{folder}", "cats", "--caption-column", NOT_UTF8),
        ("datasets", "import", "{folder}", "cats", "--request-id", NOT_UTF8),
        ("datasets", "import", NOT_UTF8, "cats", "--server-side"),
        ("datasets", "show", NOT_UTF8),
        ("datasets", "watch", NOT_UTF8),
        ("train", "start", NOT_UTF8, "--model", "a/b"),
        ("train", "start", "cats", "--model", NOT_UTF8),
        ("train", "start", "cats", "--model", "a/b", "--revision", NOT_UTF8),
        ("train", "start", "cats", "--model", "a/b", "--display-name", NOT_UTF8),
        ("train", "start", "cats", "--model", "a/b", "--target-module", NOT_UTF8),
        ("train", "start", "cats", "--model", "a/b", "--instance-prompt", NOT_UTF8),
        ("train", "start", "cats", "--model", "a/b", "--request-id", NOT_UTF8),
        ("train", "watch", NOT_UTF8),
        ("train", "stop", NOT_UTF8),
        ("train", "cancel", NOT_UTF8),
        ("train", "show", NOT_UTF8),
        ("generate", NOT_UTF8, "--model", "a/b", "--out", "{out}"),
        ("generate", "a cat", "--model", "a/b", "--out", "{out}", "--negative", NOT_UTF8),
        ("generate", "a cat", "--model", "a/b", "--out", "{out}", "--adapter", NOT_UTF8),
        ("gallery", "list", "--generation", NOT_UTF8),
        ("gallery", "get", NOT_UTF8, "--out", "{out}"),
    ],
    ids=lambda words: " ".join(words).replace(NOT_UTF8, "BAD"),
)
async def test_text_that_is_not_utf8_is_code_2(
    services: Services, sfumato: CommandLine, folder: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    places = {"folder": folder, "out": tmp_path / "out"}
    answer = await sfumato(*(word.format(**places) for word in words))
    assert (answer.code, answer.out.replace("uploaded 2 files\n", "")) == (2, "")
    assert answer.err == "not text in UTF-8: a \\udcff cat\n"
    assert [*services.imports.created, *services.runs.created] == []
    assert services.generations.created == []


async def test_address_of_the_environment_is_text_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SFUMATO_TRAINER_ADDRESS", NOT_UTF8)
    _, ended = await in_process("train", "list")
    assert ended == (2, b"not text in UTF-8: a \\udcff cat\n")


@pytest.mark.parametrize("key", ["secret\n", "secret\udcff", "secret\u00fc"], ids=ascii)
async def test_key_that_no_header_can_carry_is_code_2_and_not_shown(
    sfumato: CommandLine, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("SFUMATO_API_KEY", key)
    answer = await sfumato("train", "list")
    assert answer.code == 2
    assert "API key" in answer.err
    assert "secret" not in answer.err


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("", "must be host:port"),
        ("127.0.0.1:99999", "127.0.0.1:99999: the port must be 1 to 65535"),
        ("localhost:-1", "localhost:-1: the port must be 1 to 65535"),
        ("[::1]:0", "[::1]:0: the port must be 1 to 65535"),
    ],
)
async def test_address_that_no_server_can_have_is_code_2(
    sfumato: CommandLine, address: str, complaint: str
) -> None:
    answer = await sfumato("--address", address, "train", "list")
    assert (answer.code, answer.out) == (2, "")
    assert complaint in answer.err


@pytest.mark.parametrize(
    ("closed", "words", "code"),
    [
        ("1", ("train", "list"), 0),
        ("2", ("train", "list"), 0),
        ("2", ("train", "cancel", RUN), 4),
        ("1", ("train", "cancel", RUN), 4),
    ],
)
async def test_streams_that_are_closed_change_no_exit_code(
    services: Services, closed: str, words: tuple[str, ...], code: int
) -> None:
    command = shlex.join([*COMMAND, "--address", services.address, *words])
    process = await asyncio.create_subprocess_shell(f"exec {command} {closed}>&-")
    assert await process.wait() == code


async def test_errors_that_find_no_space_change_no_exit_code(services: Services) -> None:
    command = shlex.join([*COMMAND, "--address", services.address, "train", "cancel", RUN])
    process = await asyncio.create_subprocess_shell(f"exec {command} 2>/dev/full")
    assert await process.wait() == 4


@pytest.mark.parametrize("adapter", ["", ":1"])
async def test_adapter_without_a_name_is_code_2(sfumato: CommandLine, adapter: str) -> None:
    answer = await sfumato(
        *("generate", "a cat", "--model", "a/b", "--out", "pictures", "--adapter", adapter)
    )
    assert answer.code == 2
    assert "--adapter" in answer.err


async def test_folder_without_a_name_is_not_the_current_one(sfumato: CommandLine) -> None:
    answer = await sfumato("datasets", "import", "", "cats")
    assert answer.code == 2
    assert "SOURCE" in answer.err


@pytest.mark.parametrize("kind", ["pipe", "link"])
async def test_file_that_is_none_is_named(
    services: Services, sfumato: CommandLine, folder: Path, kind: str
) -> None:
    odd = folder / "odd.png"
    if kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to("nowhere")
    answer = await sfumato("datasets", "import", str(folder), "cats")
    assert (answer.code, answer.err) == (2, f"{odd}: is no file that can be read\n")
    assert services.imports.created == {}
    answer = await sfumato(
        "datasets", "import", str(folder), "cats", "--on-refused", "skip", "--detach"
    )
    assert "refused: odd.png: is no file that can be read" in answer.err
    assert len(services.imports.created) == 1


@pytest.mark.parametrize(
    ("out", "complaint"),
    [
        ("/dev/null/pictures", "/dev/null: Not a directory"),
        ("/proc/pictures", None),
        ("{file}", "{file}: Not a directory"),
        ("{file}/pictures", "{file}: Not a directory"),
    ],
)
async def test_generate_checks_its_folder_before_it_asks(
    services: Services, sfumato: CommandLine, tmp_path: Path, out: str, complaint: str | None
) -> None:
    file = tmp_path / "file"
    file.touch()
    answer = await sfumato(
        "generate", "a cat", "--model", "org/model", "--out", out.format(file=file)
    )
    assert answer.code == 2
    assert len(answer.err.splitlines()) == 1
    if complaint is not None:
        assert answer.err == complaint.format(file=file) + "\n"
        assert services.generations.created == []


@pytest.mark.parametrize(
    ("out", "complaint"),
    [
        ("{folder}", "{folder}: Is a directory"),
        ("/", "/: Is a directory"),
        ("", ".: Is a directory"),
        ("{folder}/none/picture.png", "{folder}/none: No such file or directory"),
        ("{folder}/a.png/picture.png", "{folder}/a.png: Not a directory"),
        ("{folder}/{long}", "File name too long"),
        ("{folder}/pipe", "is there already, and is no regular file"),
    ],
)
async def test_gallery_get_says_why_it_cannot_write(
    sfumato: CommandLine, folder: Path, out: str, complaint: str
) -> None:
    os.mkfifo(folder / "pipe")
    before = sorted(folder.iterdir())
    answer = await sfumato(
        "gallery", "get", IMAGE, "--out", out.format(folder=folder, long="a" * 300)
    )
    assert (answer.code, answer.out) == (2, "")
    assert len(answer.err.splitlines()) == 1
    assert answer.err.strip().endswith(complaint.format(folder=folder))
    assert sorted(folder.iterdir()) == before


async def test_file_that_cannot_be_read_ends_an_import(
    services: Services, sfumato: CommandLine, folder: Path
) -> None:
    # Readable by its mode, but not by any process: whoever runs the tests may be root.
    (folder / "b.png").symlink_to("/proc/self/mem")
    answer = await sfumato("datasets", "import", str(folder), "cats")
    assert (answer.code, answer.err) == (2, "Input/output error\n")
    assert services.imports.created == {}


async def test_file_whose_name_is_not_utf8_ends_an_import(
    services: Services, sfumato: CommandLine, folder: Path
) -> None:
    (folder / "\udcff.png").write_bytes(b"picture")
    answer = await sfumato("datasets", "import", str(folder), "cats")
    assert (answer.code, answer.err) == (2, "not text in UTF-8: \\udcff.png\n")
    assert services.imports.created == {}


@pytest.mark.parametrize(
    ("place", "complaint"),
    [("none", "No such file or directory"), ("a.png/below", "Not a directory")],
)
async def test_place_that_is_no_folder_ends_an_import(
    sfumato: CommandLine, folder: Path, place: str, complaint: str
) -> None:
    answer = await sfumato("datasets", "import", str(folder / place), "cats")
    assert (answer.code, answer.err) == (2, f"{folder / place}: {complaint}\n")


async def test_model_that_cannot_be_looked_at_here_is_left_to_the_server(
    services: Services, sfumato: CommandLine
) -> None:
    name = "a" * 300
    assert (await sfumato("train", "start", "cats", "--model", name)).code == 0
    assert services.runs.created[0].configuration.base_model.directory.path == name


async def test_tiny_refuses_a_seed_below_0(sfumato: CommandLine) -> None:
    answer = await sfumato("tiny", "flux.1", "/dev/null/tiny", "--seed", "-1")
    assert answer.code == 2
    assert "--seed" in answer.err


async def test_tiny_says_why_it_cannot_write(sfumato: CommandLine) -> None:
    answer = await sfumato("tiny", "flux.1", "/dev/null/tiny")
    assert (answer.code, answer.err) == (2, "/dev/null: Not a directory\n")


async def started(
    *words: str, stdout: int = asyncio.subprocess.PIPE, stderr: int = asyncio.subprocess.PIPE
) -> asyncio.subprocess.Process:
    """A command in a process, and a process group, of its own."""
    return await asyncio.create_subprocess_exec(
        *COMMAND, *words, stdout=stdout, stderr=stderr, start_new_session=True
    )


async def in_process(*words: str) -> tuple[bytes, tuple[int | None, bytes]]:
    """Standard output, exit code and standard error of a command."""
    process = await started(*words)
    out, err = await process.communicate()
    return out, (process.returncode, err)


@pytest.mark.parametrize(
    "words",
    [
        ("train", "list"),
        ("--json", "train", "list"),
        ("train", "show", RUN),
        ("gallery", "list"),
        ("config", "show"),
        ("--json", "config", "show"),
        ("--help",),
        ("generate", "--help"),
    ],
    ids=" ".join,
)
async def test_output_that_nobody_reads_ends_a_command_quietly(
    services: Services, words: tuple[str, ...]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = await started("--address", services.address, *words, stdout=writer)
    os.close(writer)
    _, err = await process.communicate()
    assert (process.returncode, err) == (141, b"")


async def test_errors_that_nobody_reads_end_a_command_alike(services: Services) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    process = await started("--address", services.address, "train", "cancel", RUN, stderr=writer)
    os.close(writer)
    await process.communicate()
    assert process.returncode == 141


async def test_job_goes_on_when_nobody_reads_and_can_be_attached_to_again(
    services: Services,
) -> None:
    reader, writer = os.pipe()
    process = await started(
        "--address", services.address, "--json", "datasets", "watch", IMPORT, stdout=writer
    )
    os.close(writer)
    with os.fdopen(reader, "rb") as output:
        assert json.loads(await asyncio.to_thread(output.readline)).keys() == {"attached"}
    await services.imports.append(1)
    assert process.stderr is not None
    err = await process.stderr.read()
    assert await process.wait() == 141
    assert err.decode() == (
        "detached; the job goes on. Attach again: "
        f"sfumato --address {services.address} --json datasets watch {IMPORT}\n"
    )


async def test_interrupt_of_tiny_ends_its_process_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "sfumato_diffusion"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tiny.py").write_text("import signal\nprint('ready', flush=True)\nsignal.pause()\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    process = await started("tiny", "flux.1", str(tmp_path / "tiny"))
    assert process.stdout is not None
    assert await process.stdout.readline() == b"ready\n"
    os.killpg(process.pid, signal.SIGINT)
    # Ends when the last process that holds the pipe does.
    out, err = await process.communicate()
    assert (process.returncode, out, err) == (130, b"", b"interrupted\n")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
async def test_characters_that_the_screen_lacks_are_escaped(
    services: Services, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    services.runs.run.display_name = "\u00fcber \u03c3"
    monkeypatch.setenv("PYTHONIOENCODING", encoding)
    out, ended = await in_process("--address", services.address, "train", "list")
    assert ended == (0, b"")
    assert "\\u03c3" in out.decode(encoding)
    out, ended = await in_process("--address", services.address, "--json", "train", "list")
    assert ended == (0, b"")
    assert json.loads(out)["displayName"] == services.runs.run.display_name


async def test_watch_of_a_lost_server_ends_with_the_time_given(
    services: Services, capsys: pytest.CaptureFixture[str]
) -> None:
    attached = asyncio.Event()

    async def quiet(request: imports_pb2.WatchImportRequest) -> AsyncIterator[Response]:
        yield services.imports.attached()
        attached.set()
        await asyncio.Event().wait()

    services.imports.scripts.append(quiet)
    async with CuttingProxy(services.port) as proxy:
        command = CommandLine(proxy.address, capsys)
        watching = asyncio.create_task(command("datasets", "watch", IMPORT))
        await attached.wait()
    async with asyncio.timeout(30):
        answer = await watching
    assert answer.code == 5
    assert answer.err.startswith("UNREACHABLE: ")
