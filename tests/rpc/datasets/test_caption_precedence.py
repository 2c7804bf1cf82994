"""One table of captions, answered alike by the listing and by the trainer's reader."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from datasets_server import Running, imported
from pictures import picture
from sfumato.datasets.v1 import datasets_pb2 as pb
from sfumato.datasets.v1 import versions_pb2
from sfumato.job.v1 import job_pb2
from sfumato_diffusion.families.identify import identify_family
from sfumato_trainer.dataset_reader import DatasetReader
from sfumato_trainer.run_request import BaseModel
from sfumato_trainer.runs import resolve_settings
from sfumato_trainer.settings import TrainingSettings
from sfumato_trainer.stages.cache_conditioning import caption_of

INSTANCE_PROMPT = "of the instance"


def settings(instance_prompt: str) -> TrainingSettings:
    """Those of a run that asks for an instance prompt."""
    base = BaseModel(kind="hub", reference="org/model", revision="main", message={})
    family = identify_family("org/model", explicit="z-image")
    return resolve_settings({"instance_prompt": instance_prompt}, base, family, device="cpu")


def row(caption: object) -> str:
    return json.dumps({"file_name": "a.png", "text": caption}) + "\n"


CSV = "file_name,text\na.png,from csv\n"


@dataclass(frozen=True, kw_only=True)
class Case:
    """Files beside the picture, and its caption in the listing and in training."""

    files: dict[str, str] = field(default_factory=dict)
    listed: str
    trained: str


CASES = {
    "nothing": Case(listed="", trained=INSTANCE_PROMPT),
    "txt": Case(files={"a.txt": "txt"}, listed="txt", trained="txt"),
    "caption": Case(files={"a.caption": "cap"}, listed="cap", trained="cap"),
    "both": Case(files={"a.txt": "txt", "a.caption": "cap"}, listed="txt", trained="txt"),
    "metadata.jsonl": Case(files={"metadata.jsonl": row("m")}, listed="m", trained="m"),
    "captions.jsonl": Case(files={"captions.jsonl": row("c")}, listed="c", trained="c"),
    "metadata.csv": Case(files={"metadata.csv": CSV}, listed="from csv", trained="from csv"),
    "metadata before captions": Case(
        files={"metadata.jsonl": row("m"), "captions.jsonl": row("c")}, listed="m", trained="m"
    ),
    "captions before csv": Case(
        files={"captions.jsonl": row("c"), "metadata.csv": CSV}, listed="c", trained="c"
    ),
    "sidecar before metadata": Case(
        files={"a.caption": "cap", "metadata.jsonl": row("m")}, listed="cap", trained="cap"
    ),
    "tombstone": Case(
        files={"a.txt": "", "metadata.jsonl": row("m")}, listed="", trained=INSTANCE_PROMPT
    ),
    "null": Case(files={"metadata.jsonl": row(None)}, listed="", trained=INSTANCE_PROMPT),
    "null before csv": Case(
        files={"metadata.jsonl": row(None), "metadata.csv": CSV},
        listed="from csv",
        trained="from csv",
    ),
}


@pytest.mark.parametrize("name", CASES)
async def test_listing_and_trainer_agree(server: Running, root: Path, name: str) -> None:
    case = CASES[name]
    (root / "one").mkdir()
    (root / "one" / "a.png").write_bytes(picture(1))
    for file_name, text in case.files.items():
        (root / "one" / file_name).write_text(text)
    end = await imported(server.stubs, "one", "one")
    assert end.status.state == job_pb2.JOB_STATE_SUCCEEDED, end.status

    version = versions_pb2.VersionRef(dataset="one")
    listed = await server.stubs.datasets.ListSamples(pb.ListSamplesRequest(version=version))
    assert [sample.caption for sample in listed.samples] == [case.listed]

    (sample,) = await DatasetReader(lambda: server.platform.peer("datasets")).samples(
        "local", "one", 1
    )
    assert sample.caption == case.listed
    assert caption_of(sample, settings(INSTANCE_PROMPT)) == case.trained
    assert caption_of(sample, settings("")) == case.listed
