"""The datasets service as the trainer needs it: resolve, read and pin versions."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sfumato_chassis.errors import (
    FailedPrecondition,
    NotFound,
    Reason,
    SfumatoError,
    Unavailable,
)
from sfumato_client import errors as client_errors
from sfumato_client.calls import RetryPolicy
from sfumato_client.channel import Addresses, Connection
from sfumato_client.client import Client
from sfumato_trainer.settings import TrainingSample

CALL_BUDGET_SECONDS = 8.0
RETRY_AFTER_SECONDS = 2.0

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class PinnedVersion:
    """The version that a run reads."""

    dataset: str
    number: int
    digest: str
    num_samples: int


class DatasetReader:
    """Reads datasets on behalf of their owners.

    Args:
        address: Answers where the datasets service is.
    """

    def __init__(self, address: Callable[[], Awaitable[str]]) -> None:
        self._address = address
        self._clients: dict[str, Client] = {}

    async def resolve(self, owner: str, dataset: str, version: int | None) -> PinnedVersion:
        """The version that a run will read, the latest for None.

        Raises:
            NotFound: No such dataset or version.
            FailedPrecondition: DATASET_EMPTY.
            Unavailable: SERVICE_UNREACHABLE.
        """
        client = await self._client(owner)
        answer = await translated(client.datasets.get_dataset(dataset))
        for candidate in answer.versions:
            if version in {None, candidate.number}:
                if candidate.num_samples == 0:
                    raise FailedPrecondition(
                        Reason.DATASET_EMPTY, f"{dataset} version {candidate.number} is empty"
                    )
                return PinnedVersion(
                    dataset=dataset,
                    number=candidate.number,
                    digest=candidate.digest,
                    num_samples=candidate.num_samples,
                )
        raise NotFound.resource("dataset version", f"{dataset} version {version}")

    async def samples(self, owner: str, dataset: str, version: int) -> Sequence[TrainingSample]:
        """Every sample of a version. Raises what :meth:`resolve` raises."""
        client = await self._client(owner)
        _, samples = await translated(client.datasets.read_manifest(dataset, version=version))
        return [
            TrainingSample(
                file_name=sample.file_name,
                image_digest=sample.image.digest.removeprefix("sha256:"),
                width=sample.width,
                height=sample.height,
                caption=sample.caption,
            )
            for sample in samples
        ]

    async def pin(
        self, owner: str, dataset: str, version: int, *, holder: str, seconds: float
    ) -> None:
        """Keeps a version for ``holder``; again before the time is up. Raises like :meth:`resolve`."""
        client = await self._client(owner)
        await translated(
            client.datasets.pin_version(
                dataset, version=version, holder=holder, lease_seconds=seconds
            )
        )

    async def unpin(self, owner: str, dataset: str, version: int, *, holder: str) -> None:
        """Gives a version back. Raises Unavailable."""
        client = await self._client(owner)
        await translated(client.datasets.unpin_version(dataset, version=version, holder=holder))

    async def close(self) -> None:
        """Closes the connections."""
        for client in self._clients.values():
            await client.close()
        self._clients.clear()

    async def _client(self, owner: str) -> Client:
        if owner not in self._clients:
            address = await self._address()
            self._clients[owner] = Client(
                Connection(addresses=Addresses.all_at(address), principal=owner),
                policy=RetryPolicy(budget_seconds=CALL_BUDGET_SECONDS),
            )
        return self._clients[owner]


async def translated(call: Awaitable[Result]) -> Result:
    """The answer of another service; its errors become this service's."""
    try:
        return await call
    except client_errors.NotFound as error:
        raise NotFound(
            Reason(error.reason or Reason.RESOURCE_NOT_FOUND),
            error.message,
            resource_type="dataset",
            resource_name=error.message,
        ) from error
    except client_errors.FailedPrecondition as error:
        raise FailedPrecondition(Reason(error.reason), error.message) from error
    except client_errors.SfumatoError as error:
        raise unreachable(error.message) from error


def unreachable(message: str) -> SfumatoError:
    """The error of a datasets service that does not answer."""
    return Unavailable(
        Reason.SERVICE_UNREACHABLE,
        f"the datasets service did not answer: {message}",
        retry_after_seconds=RETRY_AFTER_SECONDS,
    )
