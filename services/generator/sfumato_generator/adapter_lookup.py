"""Asks the trainer service for the adapters of its runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from sfumato_chassis.errors import NotFound
from sfumato_generator.configuration import AdapterChoice, ModelSource
from sfumato_generator.resolver import FoundAdapter

if TYPE_CHECKING:
    from sfumato_chassis.peers import Peer
    from sfumato_client.client import Client

CALL_BUDGET_SECONDS = 4.0


class TrainerAdapters:
    """Implements :class:`sfumato_generator.resolver.AdapterDirectory` over gRPC.

    Args:
        peer: Answers how the trainer service is reached.
    """

    def __init__(self, peer: Callable[[], Awaitable[Peer]]) -> None:
        self._peer = peer

    async def find(
        self, choices: Sequence[AdapterChoice], owner: str, *, path: str
    ) -> Sequence[FoundAdapter]:
        from sfumato_client.upstream import client_for

        peer = await self._peer()
        async with client_for(peer, owner, budget_seconds=CALL_BUDGET_SECONDS) as client:
            return [
                await find_one(client, choice, field=f"{path}[{index}].adapter")
                for index, choice in enumerate(choices)
            ]


async def find_one(client: Client, choice: AdapterChoice, *, field: str) -> FoundAdapter:
    """One adapter.

    Raises:
        NotFound: RESOURCE_NOT_FOUND, naming the field.
        Unavailable: SERVICE_UNREACHABLE.
        SfumatoError: What else the trainer answered.
    """
    from sfumato_client.upstream import relayed

    by_run = choice.kind == "training_run"
    get = client.trainer.get_adapter_of_run if by_run else client.trainer.get_adapter
    try:
        adapter = await relayed(
            get(choice.reference),
            service="trainer",
            resource_type=choice.kind,
            resource_name=choice.reference,
        )
    except NotFound as error:
        raise NotFound(
            error.reason,
            f"{field}: {error.message}",
            resource_type=error.resource_type,
            resource_name=error.resource_name,
        ) from error
    base, base_model = adapter.base_model, None
    if base.WhichOneof("source") == "hub":
        base_model = ModelSource(kind="hub", reference=base.hub.id)
    return FoundAdapter(
        name=adapter.name,
        digest=adapter.file.digest,
        size_bytes=adapter.file.size_bytes,
        media_type=adapter.file.media_type,
        family=adapter.family,
        base_model=base_model,
    )
