"""The command line against real servers: what it sends, prints and answers to the shell."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from command_line import PICTURE, CommandLine, Services
from cutting_proxy import CuttingProxy
from import_server import IMPORT
from model_servers import ADAPTER, IMAGE, RUN
from sfumato.datasets.v1 import imports_pb2
from sfumato.job.v1 import errors_pb2, job_pb2
from sfumato.trainer.v1 import configuration_pb2
from sfumato_client import new_request_id


async def test_import_uploads_the_folder_and_follows_the_job(
    services: Services, sfumato: CommandLine, folder: Path
) -> None:
    await services.imports.append(2)
    await services.imports.finish()
    answer = await sfumato("datasets", "import", str(folder), "cats", "--on-refused", "skip")
    assert answer.code == 0
    (request,) = services.imports.created.values()
    assert request.dataset == "cats"
    assert request.refused_files == imports_pb2.REFUSED_FILE_POLICY_SKIP
    assert not request.HasField("mode")
    sent = {file.file_name: services.blobs.blobs[file.digest] for file in request.upload.files}
    assert sent == {"a.png": b"first", "a.txt": b"a cat"}


async def test_server_side_import_names_the_folder(
    services: Services, sfumato: CommandLine
) -> None:
    request_id = new_request_id()
    answer = await sfumato(
        "--json", "datasets", "import", "pets/cats", "cats", "--server-side", "--mode", "add",
        "--detach", "--request-id", request_id,
    )  # fmt: skip
    assert answer.code == 0
    request = services.imports.created[request_id]
    assert request.folder.path == "pets/cats"
    assert request.mode == imports_pb2.IMPORT_MODE_ADD
    assert answer.json_lines[0]["name"] == IMPORT


async def test_json_watch_prints_the_messages_of_the_watch(
    services: Services, sfumato: CommandLine
) -> None:
    await services.imports.append(2)
    await services.imports.finish()
    answer = await sfumato("--json", "datasets", "watch", IMPORT)
    assert [next(iter(line)) for line in answer.json_lines] == [
        "attached",
        "event",
        "event",
        "event",
        "finished",
    ]


async def test_failed_job_is_code_1_with_its_reason(
    services: Services, sfumato: CommandLine
) -> None:
    run = services.runs.run
    run.status.state = job_pb2.JOB_STATE_FAILED
    run.status.error.CopyFrom(
        errors_pb2.JobError(
            reason=errors_pb2.ERROR_REASON_LOSS_NOT_FINITE,
            message="the loss became NaN",
            details={"step": "17"},
        )
    )
    answer = await sfumato("train", "watch", RUN)
    assert answer.code == 1
    assert "LOSS_NOT_FINITE: the loss became NaN" in answer.err
    assert "step: 17" in answer.err


async def test_unknown_name_is_code_3(sfumato: CommandLine) -> None:
    answer = await sfumato(
        "generate", "a cat", "--model", "a/b", "--out", "pictures", "--adapter", "run-2"
    )
    assert answer.code == 3
    assert answer.err.startswith("RESOURCE_NOT_FOUND: ")


async def test_refusal_is_code_4_and_json_on_request(
    services: Services, sfumato: CommandLine
) -> None:
    answer = await sfumato("--json", "train", "cancel", RUN)
    assert services.runs.ended == [f"cancel {RUN}"]
    assert answer.code == 4
    assert json.loads(answer.err)["error"]["reason"] == "JOB_STATE_UNSUITABLE"


async def test_unreachable_server_is_code_5(capsys: pytest.CaptureFixture[str]) -> None:
    async with CuttingProxy(0) as proxy:
        address = proxy.address
    answer = await CommandLine(address, capsys)("train", "list")
    assert answer.code == 5
    assert answer.err.startswith("UNREACHABLE: ")


async def test_wrong_field_is_code_2_without_a_call(
    services: Services, sfumato: CommandLine
) -> None:
    answer = await sfumato("train", "start", "cats", "--model", "a/b", "--rank", "0")
    assert answer.code == 2
    assert "configuration.rank" in answer.err
    assert services.runs.created == []


@pytest.mark.parametrize(
    "words",
    [
        ("train", "start", "cats"),
        ("train", "start", "cats", "--model", "a/b", "--optimizer", "magic"),
        ("train", "start", "cats", "--model", "model.gguf"),
        ("train", "start", "cats", "--model", "folder", "--revision", "main"),
        ("train", "start", "cats", "--model", "a/b", "--flow-shift", "much"),
        ("datasets", "import", "/nonexistent", "cats"),
        ("paint",),
    ],
    ids=" ".join,
)
async def test_wrong_usage_is_code_2(
    services: Services, sfumato: CommandLine, words: tuple[str, ...]
) -> None:
    assert (await sfumato(*words)).code == 2
    assert services.runs.created == []


async def test_train_start_sends_what_was_given_and_nothing_else(
    services: Services, sfumato: CommandLine
) -> None:
    answer = await sfumato(
        "train", "start", "cats", "--model", "org/model", "--revision", "v1", "--rank", "8",
        "--learning-rate", "1e-4", "--no-random-flip", "--learning-rate-scheduler",
        "constant_with_warmup", "--warmup-steps", "10", "--target-module", "to_q",
        "--target-module", "to_k", "--flow-shift", "3", "--seed", "9007199254740991",
        "--display-name", "my cats",
    )  # fmt: skip
    assert answer.code == 0
    (request,) = services.runs.created
    assert request.display_name == "my cats"
    expected = configuration_pb2.TrainingConfiguration(
        dataset="cats",
        rank=8,
        learning_rate=1e-4,
        random_flip=False,
        learning_rate_scheduler=configuration_pb2.LEARNING_RATE_SCHEDULER_CONSTANT_WITH_WARMUP,
        warmup_steps=10,
        target_modules=["to_q", "to_k"],
        flow_shift=configuration_pb2.FlowShift(shift=3.0),
        seed=9007199254740991,
    )
    expected.base_model.hub.id = "org/model"
    expected.base_model.hub.revision = "v1"
    assert request.configuration == expected


async def test_train_start_shows_milestones_and_the_adapter(
    services: Services, sfumato: CommandLine
) -> None:
    answer = await sfumato("train", "start", "cats", "--model", "org/model")
    assert answer.out.splitlines() == [
        f"training run {RUN}",
        "began on cpu",
        "checkpoint at step 2, 2.0 KiB",
        f"{RUN}: adapter {ADAPTER} after 2 steps, average loss 0.2500",
    ]


async def test_validate_only_prints_the_resolved_configuration(
    services: Services, sfumato: CommandLine
) -> None:
    answer = await sfumato(
        "--json", "train", "start", "cats", "--model", "org/model", "--validate-only"
    )
    assert answer.code == 0
    assert services.runs.created[0].validate_only
    assert answer.json_lines == [{"baseModel": {"hub": {"id": "org/model"}}, "dataset": "cats"}]


async def test_stop_list_and_what_the_server_says_is_never_markup(
    services: Services, sfumato: CommandLine
) -> None:
    services.runs.run.display_name = "[red]\x1b[31mred"
    assert (await sfumato("train", "stop", RUN)).out == f"{RUN} is succeeded\n"
    answer = await sfumato("train", "list")
    assert "[red]\\x1b[31mred" in answer.out


async def test_generate_saves_pictures_with_adapters_resolved(
    services: Services, sfumato: CommandLine, tmp_path: Path
) -> None:
    out = tmp_path / "pictures"
    local = tmp_path / "mine.safetensors"
    local.write_bytes(b"adapter")
    answer = await sfumato(
        "generate", "a cat", "--model", "org/model", "--adapter", f"{RUN}:0.5", "--adapter",
        ADAPTER, "--adapter", f"{local}:-1", "--adapter", "org/lora@v2:2", "--steps", "4",
        "--negative", "blurry", "--seed", "7", "--out", str(out),
    )  # fmt: skip
    assert answer.code == 0, answer.err
    assert (out / f"{IMAGE}.png").read_bytes() == PICTURE
    (request,) = services.generations.created
    configuration = request.configuration
    assert configuration.WhichOneof("workflow") == "text_to_image"
    assert (configuration.steps, configuration.seed) == (4, 7)
    assert configuration.negative_prompt == "blurry"
    run, adapter, file, hub = configuration.adapters
    assert (run.adapter.training_run, run.weight) == (RUN, 0.5)
    assert adapter.adapter.adapter == ADAPTER
    assert not adapter.HasField("weight")
    assert services.blobs.blobs[file.adapter.upload_digest] == b"adapter"
    assert (hub.adapter.hub.id, hub.adapter.hub.revision, hub.weight) == ("org/lora", "v2", 2.0)


async def test_name_of_an_image_cannot_leave_the_folder(
    services: Services, sfumato: CommandLine, tmp_path: Path
) -> None:
    services.generations.image.name = "../evil"
    services.generations.events[1].image_saved.name = "../evil"
    out = tmp_path / "pictures"
    answer = await sfumato("generate", "a cat", "--model", "org/model", "--out", str(out))
    assert answer.code == 4
    assert {path.name for path in tmp_path.rglob("*")} == {"pictures"}


async def test_names_are_whole_however_narrow_the_screen(
    services: Services, sfumato: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    services.generations.image.name = "image-0123456789abcdef"
    services.generations.image.configuration.prompt = "a red apple on a chair " * 8
    assert "image-0123456789abcdef" in (await sfumato("gallery", "list")).out


async def test_gallery(services: Services, sfumato: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "picture.png"
    assert IMAGE in (await sfumato("gallery", "list")).out
    assert (await sfumato("gallery", "get", IMAGE, "--out", str(file))).code == 0
    assert file.read_bytes() == PICTURE


async def test_trace_prints_a_line_for_each_call(services: Services, sfumato: CommandLine) -> None:
    answer = await sfumato("--trace", "train", "watch", RUN)
    assert answer.err == (
        f"""grpcurl -plaintext -d '{{"name":"{RUN}","replay":true}}' {services.address}"""
        " sfumato.trainer.v1.TrainerService/WatchTrainingRun\n"
    )


async def test_interrupt_detaches_and_says_how_to_attach_again(services: Services) -> None:
    await services.imports.append(1)
    command = [sys.executable, "-m", "sfumato_client.cli.main", "--address", services.address]
    process = await asyncio.create_subprocess_exec(
        *command, "--json", "datasets", "watch", IMPORT,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert json.loads(await process.stdout.readline()).keys() == {"attached"}
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert process.returncode == 130
    assert err.decode() == (
        "detached; the job goes on. Attach again: "
        f"sfumato --address {services.address} --json datasets watch {IMPORT}\n"
    )
    assert services.imports.state == job_pb2.JOB_STATE_RUNNING
