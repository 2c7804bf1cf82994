"""What an import asks of the Hugging Face Hub, and what the Hub does not give."""

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from sfumato_datasets.notes import printable_name

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
DEFAULT_REVISION: Final = "main"
DEFAULT_SPLIT: Final = "train"
MAX_IMAGES: Final = 100_000
"""Of one import from the Hub: as many as the entries of an archive."""

# What git takes as the name of a branch or a tag, https://git-scm.com/docs/git-check-ref-format.
_REVISION: Final = re.compile(r"[^\x00-\x20\x7f~^:?*\[\\]{1,255}")


class HubError(Exception):
    """Base of what the Hub does not give.

    The message names the dataset, and never a place on this machine, a signed address or a token.

    HubError
    ├── HubUnreachableError
    │   └── HubBusyError
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


class HubBusyError(HubUnreachableError):
    """The Hub answers, and wants to be asked later."""


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


def check_names(asked: HubRequest) -> None:
    """Refuses what no dataset, revision or folder is called, before anything is asked for it.

    Raises:
        HubNotFoundError: What it has of `..`, or of what git and the Hub do not take, leads elsewhere.
    """
    if "--" in asked.id or ".." in asked.id:
        raise HubNotFoundError("no dataset can have that id")
    revision = asked.revision or DEFAULT_REVISION
    if _REVISION.fullmatch(revision) is None or not _leads_down(revision):
        raise HubNotFoundError(f"no revision can be called {printable_name(revision)}")
    if asked.folder.strip("/") and not _leads_down(asked.folder.strip("/")):
        raise HubNotFoundError(f"no folder can be called {printable_name(asked.folder)}")


def _leads_down(path: str) -> bool:
    parts = path.split("/")
    return path.isprintable() and "\\" not in path and not {"", ".", ".."}.intersection(parts)
