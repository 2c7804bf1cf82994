"""What an import asks of the Hugging Face Hub, and what the Hub does not give."""

from dataclasses import dataclass
from typing import ClassVar, Final

DEFAULT_REVISION: Final = "main"
DEFAULT_SPLIT: Final = "train"


class HubError(Exception):
    """Base of what the Hub does not give; the message names the dataset, never a path or a token.

    HubError
    ├── HubUnreachableError
    ├── HubNotFoundError
    ├── HubGatedError
    ├── HubUnsupportedError
    ├── HubTooLargeError
    ├── HubRefusedError
    ├── HubDamagedError
    └── HubCancelledError
    """

    reason: ClassVar[str] = "HUB_UNREACHABLE"


class HubUnreachableError(HubError):
    """The Hub does not answer, or not in time, and the cache on this machine does not hold it."""


class HubNotFoundError(HubError):
    """There is no such dataset, revision or folder, or it is private."""

    reason = "HUB_NOT_FOUND"


class HubGatedError(HubError):
    """The Hub wants a token, or a licence accepted by the one that it was given."""

    reason = "HUB_GATED"


class HubUnsupportedError(HubError):
    """Neither images in a folder nor Parquet with an image column."""

    reason = "HUB_UNSUPPORTED"


class HubTooLargeError(HubError):
    """More bytes, files or time than the server spends on one import."""

    reason = "HUB_TOO_LARGE"


class HubRefusedError(HubError):
    """It leads to an address that is not allowed."""

    reason = "HUB_REFUSED"


class HubDamagedError(HubError):
    """What came is not what was announced."""

    reason = "HUB_DAMAGED"


class HubCancelledError(HubError):
    """The import was cancelled meanwhile."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HubRequest:
    """What is asked of the Hub. `split` and `image_column` are for Parquet."""

    id: str
    revision: str | None = None
    folder: str = ""
    split: str = DEFAULT_SPLIT
    image_column: str | None = None
    caption_column: str | None = None
    max_samples: int | None = None
