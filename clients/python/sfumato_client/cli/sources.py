"""How base models and adapters are named on the command line."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sfumato.job.v1 import sources_pb2
from sfumato_client.client import Client
from sfumato_client.errors import NotFound

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")


class SourceError(ValueError):
    """The words do not name a model or adapter; the message says why."""


def model_source(model: str, *, revision: str | None = None) -> sources_pb2.ModelSource:
    """A base model: a Hub id, or a folder on the server.

    `organisation/name` is a Hub id unless a file or folder of that name is here. A path that exists
    here is sent as an absolute one; any other goes to the server as it is, which looks for it under
    its own roots.

    Raises:
        SourceError: an option that this kind of source cannot honour, or a kind that no service takes.
    """
    exists = os.path.exists(model)  # False, too, for one that this machine cannot look at
    if _HUB_ID.fullmatch(model) and not exists:
        return sources_pb2.ModelSource(hub=sources_pb2.HubModel(id=model, revision=revision))
    if revision is not None:
        raise SourceError("--revision is for Hub ids; a path has none")
    if Path(model).suffix.lower() in {".gguf", ".safetensors"}:
        raise SourceError("a model that is a single file cannot be used; name a folder or a Hub id")
    path = str(Path(model).resolve()) if exists else model
    return sources_pb2.ModelSource(directory=sources_pb2.DirectoryModel(path=path))


def hub_model(text: str) -> sources_pb2.HubModel:
    """`organisation/name` or `organisation/name@revision`."""
    name, _, revision = text.partition("@")
    return sources_pb2.HubModel(id=name, revision=revision or None)


def split_weight(text: str) -> tuple[str, float | None]:
    """`source:0.8` as source and weight; without a number at the end there is no weight."""
    if _DIGEST.fullmatch(text):
        return text, None
    source, colon, weight = text.rpartition(":")
    if colon and _NUMBER.fullmatch(weight):
        return source, float(weight)
    return text, None


async def weighted_adapter(text: str, client: Client) -> sources_pb2.WeightedAdapter:
    """An adapter: a training run, an adapter's name, a digest, a Hub id, or a file, which is uploaded.

    Raises:
        OSError: no such file here.
        SfumatoError: the trainer knows neither a run nor an adapter of that name.
    """
    source, weight = split_weight(text)
    return sources_pb2.WeightedAdapter(adapter=await _adapter_ref(source, client), weight=weight)


async def _adapter_ref(source: str, client: Client) -> sources_pb2.AdapterRef:
    if _DIGEST.fullmatch(source):
        return sources_pb2.AdapterRef(upload_digest=source)
    path = Path(source)
    if path.suffix == ".safetensors":
        blob = await client.generator.blobs.upload(path)
        return sources_pb2.AdapterRef(upload_digest=blob.digest)
    if "/" in source:
        return sources_pb2.AdapterRef(hub=hub_model(source))
    try:
        await client.trainer.get_adapter_of_run(source)
    except NotFound:
        await client.trainer.get_adapter(source)
        return sources_pb2.AdapterRef(adapter=source)
    return sources_pb2.AdapterRef(training_run=source)
