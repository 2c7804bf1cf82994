"""Asks the trainer service for the adapters of its runs."""

from collections.abc import Awaitable, Callable, Sequence

from sfumato_chassis.errors import NotFound, Reason, Unavailable
from sfumato_client import errors as client_errors
from sfumato_client.calls import RetryPolicy
from sfumato_client.channel import Addresses, Connection
from sfumato_client.client import Client
from sfumato_generator.configuration import AdapterChoice, ModelSource
from sfumato_generator.generations import FoundAdapter

CALL_BUDGET_SECONDS = 4.0
RETRY_AFTER_SECONDS = 2.0


class TrainerAdapters:
    """Implements :class:`sfumato_generator.generations.AdapterDirectory` over gRPC.

    Args:
        address: Answers where the trainer service is.
    """

    def __init__(self, address: Callable[[], Awaitable[str]]) -> None:
        self._address = address

    async def find(
        self, choices: Sequence[AdapterChoice], owner: str, *, path: str
    ) -> Sequence[FoundAdapter]:
        connection = Connection(addresses=Addresses.all_at(await self._address()), principal=owner)
        policy = RetryPolicy(
            budget_seconds=CALL_BUDGET_SECONDS, attempt_timeout_seconds=CALL_BUDGET_SECONDS
        )
        async with Client(connection, policy=policy) as client:
            return [
                await find_one(client, choice, field=f"{path}[{index}].adapter")
                for index, choice in enumerate(choices)
            ]


async def find_one(client: Client, choice: AdapterChoice, *, field: str) -> FoundAdapter:
    """One adapter.

    Raises:
        NotFound: RESOURCE_NOT_FOUND, naming the field.
        Unavailable: SERVICE_UNREACHABLE.
    """
    by_run = choice.kind == "training_run"
    get = client.trainer.get_adapter_of_run if by_run else client.trainer.get_adapter
    try:
        adapter = await get(choice.reference)
    except client_errors.NotFound as error:
        raise NotFound(
            Reason(error.reason or Reason.RESOURCE_NOT_FOUND),
            f"{field}: {error.message}",
            resource_type=choice.kind,
            resource_name=choice.reference,
        ) from error
    except client_errors.SfumatoError as error:
        raise Unavailable(
            Reason.SERVICE_UNREACHABLE,
            f"the trainer service did not answer: {error.message}",
            retry_after_seconds=error.retry_delay_seconds or RETRY_AFTER_SECONDS,
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
