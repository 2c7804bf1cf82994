"""The datasets service as the trainer needs it: resolve, read and pin versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from sfumato_chassis.errors import FailedPrecondition, Reason
from sfumato_trainer.settings import TrainingSample

if TYPE_CHECKING:
    from sfumato_chassis.peers import Peer
    from sfumato_client.datasets import Datasets

CALL_BUDGET_SECONDS = 8.0

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
        peer: Answers how the datasets service is reached.
    """

    def __init__(self, peer: Callable[[], Awaitable[Peer]]) -> None:
        self._peer = peer

    async def resolve(self, owner: str, dataset: str, version: int | None) -> PinnedVersion:
        """The version that a run will read, the latest for None.

        Raises:
            NotFound: No such dataset or version.
            FailedPrecondition: DATASET_EMPTY.
            Unavailable: SERVICE_UNREACHABLE.
        """
        reference = f"{dataset} version {version or 'latest'}"
        found = await self._call(
            owner,
            lambda datasets: datasets.get_dataset_version(dataset, version=version),
            reference,
        )
        if found.num_samples == 0:
            raise FailedPrecondition(Reason.DATASET_EMPTY, f"{reference} is empty")
        return PinnedVersion(
            dataset=dataset,
            number=found.number,
            digest=found.digest,
            num_samples=found.num_samples,
        )

    async def samples(self, owner: str, dataset: str, version: int) -> Sequence[TrainingSample]:
        """Every sample of a version. Raises what :meth:`resolve` raises."""
        _, samples = await self._call(
            owner,
            lambda datasets: datasets.read_manifest(dataset, version=version),
            f"{dataset} version {version}",
        )
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
        await self._call(
            owner,
            lambda datasets: datasets.pin_version(
                dataset, version=version, holder=holder, lease_seconds=seconds
            ),
            f"{dataset} version {version}",
        )

    async def unpin(self, owner: str, dataset: str, version: int, *, holder: str) -> None:
        """Gives a version back. Raises Unavailable."""
        await self._call(
            owner,
            lambda datasets: datasets.unpin_version(dataset, version=version, holder=holder),
            f"{dataset} version {version}",
        )

    async def _call(
        self, owner: str, ask: Callable[[Datasets], Awaitable[Result]], reference: str
    ) -> Result:
        """Asks on behalf of ``owner`` about the version that ``reference`` names."""
        from sfumato_client.upstream import client_for, relayed

        peer = await self._peer()
        async with client_for(peer, owner, budget_seconds=CALL_BUDGET_SECONDS) as client:
            return await relayed(
                ask(client.datasets),
                service="datasets",
                resource_type="dataset version",
                resource_name=reference,
            )
