"""What an import asks of the Hugging Face Hub, and what the Hub does not give."""

from dataclasses import dataclass
from typing import ClassVar, Final

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
DEFAULT_REVISION: Final = "main"
DEFAULT_SPLIT: Final = "train"


class HubError(Exception):
    """Base of what the Hub does not give.

    The message names the dataset, and never a place on this machine, a signed address or a token.

    HubError
    ├── HubUnreachableError
    ├── HubNotFoundError
    ├── HubGatedError
    ├── HubUnsupportedError
    ├── HubTooLargeError
    ├── HubRefusedError
    └── HubDamagedError
    """

    reason: ClassVar[str]


class HubUnreachableError(HubError):
    """The Hub does not answer, or not in time, and the cache on this machine does not hold it.

    Attributes:
        pause_seconds: For which the Hub asks before the next try.
    """

    reason = "HUB_UNREACHABLE"

    def __init__(self, message: str, pause_seconds: float = 0.0) -> None:
        super().__init__(message)
        self.pause_seconds = pause_seconds


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


class HubCancelledError(Exception):
    """The import was cancelled meanwhile; nothing is wrong with the Hub."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HubRequest:
    """What is asked of the Hub.

    Attributes:
        id: `name` or `organisation/name`.
        revision: Branch, tag or commit; None for DEFAULT_REVISION.
        folder: Of the repository, with those below it; empty for all.
        split: Of Parquet.
        image_column: Of Parquet; None for the only one that holds images.
        caption_column: None for `text`.
        max_samples: The first so many images or rows; None for all.
    """

    id: str
    revision: str | None = None
    folder: str = ""
    split: str = DEFAULT_SPLIT
    image_column: str | None = None
    caption_column: str | None = None
    max_samples: int | None = None
