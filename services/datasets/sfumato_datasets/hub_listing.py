"""What the Hugging Face Hub says of a dataset: its commit, and the files of that commit.

Paths, sizes and digests are those of the Hub's HTTP interface (``/api/datasets``).
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

from sfumato_datasets.hub_connection import CHUNK_BYTES, Answer, HubConnection, followed
from sfumato_datasets.hub_request import (
    DEFAULT_REVISION,
    HubBusyError,
    HubDamagedError,
    HubError,
    HubGatedError,
    HubNotFoundError,
    HubRequest,
    HubTooLargeError,
    HubUnreachableError,
)
from sfumato_datasets.notes import printable_name

COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_GIT_SHA1: Final = COMMIT
MAX_FILES: Final = 1_000_000
MAX_PAGE_BYTES: Final = 16 << 20
NUM_TRIES: Final = 5
FIRST_PAUSE_SECONDS: Final = 0.5
"""Before the second try; each further one doubles it."""
_MAX_PAUSE_SECONDS: Final = 30.0

_SHA256: Final = re.compile(r"[0-9a-f]{64}")
_SECONDS: Final = re.compile(r"[0-9]{1,9}")
_NEXT: Final = re.compile(r'<([^<>]+)>\s*;\s*rel="?next"?')

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class HubFile:
    """A file of a commit.

    Attributes:
        path: From the root of the repository, as the Hub has it; untrusted.
        sha256: Of what lies in large file storage; otherwise `git_sha1` is there, that of git's blob.
    """

    path: str
    size_bytes: int
    sha256: str | None
    git_sha1: str | None

    @property
    def shown(self) -> str:
        """The path, as a message can hold it."""
        return printable_name(self.path)

    @property
    def key(self) -> str:
        """The same for equal contents alone, and usable as the name of a file."""
        return f"sha256-{self.sha256}" if self.sha256 else f"git-{self.git_sha1}"


def is_whole(path: Path, file: HubFile, *, check: Callable[[], None] = lambda: None) -> bool:
    """Whether a regular file lies there whose bytes are those of `file`; `check` may end the reading."""
    if not path.is_file() or path.stat().st_size != file.size_bytes:
        return False
    digest = hashlib.sha256()
    if file.sha256 is None:
        # Git's name of the content, as good as the list of files, which came over TLS.
        digest = hashlib.sha1(usedforsecurity=False)
        digest.update(f"blob {file.size_bytes}\0".encode("ascii"))
    with path.open("rb") as read:
        while chunk := read.read(CHUNK_BYTES):
            check()
            digest.update(chunk)
    return digest.hexdigest() == (file.sha256 or file.git_sha1)


def find_commit(connection: HubConnection, endpoint: str, source: HubRequest) -> str:
    """The commit that a revision is now. Raises HubError."""
    revision = source.revision or DEFAULT_REVISION
    url = f"{endpoint}/api/datasets/{source.id}/revision/{quote(revision, safe='')}"
    document, _ = _document(connection, url, f"no dataset with a revision {revision}")
    commit = document.get("sha") if isinstance(document, dict) else None
    if not isinstance(commit, str) or COMMIT.fullmatch(commit) is None:
        raise HubDamagedError("the Hub names no commit")
    if COMMIT.fullmatch(revision) is not None and commit != revision:
        raise HubDamagedError("the Hub names another commit than was asked for")
    return commit


def list_files(
    connection: HubConnection, endpoint: str, source: HubRequest, commit: str
) -> list[HubFile]:
    """All files of a commit in the folder that was asked for, and below it. Raises HubError."""
    within = source.folder.strip("/")
    folder = quote(within, safe="/")
    base = f"{endpoint}/api/datasets/{source.id}/tree/{commit}"
    url: str | None = f"{base}/{folder}?recursive=true" if folder else f"{base}?recursive=true"
    files: list[HubFile] = []
    asked: set[str] = set()
    while url is not None:
        if url in asked:
            raise HubDamagedError("the Hub's list of files leads back to itself")
        asked.add(url)
        page, following = _document(connection, url, f"no folder {source.folder!r}")
        if following is not None and not page:
            raise HubDamagedError("the Hub's list of files has an empty page")
        files += _page(page)
        if len(files) > MAX_FILES:
            raise HubTooLargeError(f"more than {MAX_FILES} files")
        url = None if following is None else followed(url, following)
    if within and not all(file.path.startswith(f"{within}/") for file in files):
        raise HubDamagedError("the Hub lists files of another folder")
    return files


def file_url(endpoint: str, source: HubRequest, commit: str, file: HubFile) -> str:
    """Where the Hub gives the bytes of a file."""
    return f"{endpoint}/datasets/{source.id}/resolve/{commit}/{quote(file.path, safe='/')}"


def _trying(connection: HubConnection, ask: Callable[[], Result]) -> Result:
    """Asks again where the Hub does not answer, with growing pauses. Raises HubError."""
    for number in range(1, NUM_TRIES):
        try:
            return ask()
        except HubUnreachableError as error:
            connection.pause(pause_seconds(number, error))
    return ask()


def pause_seconds(num_tries: int, error: HubUnreachableError) -> float:
    """How long to wait after so many tries, of which the last ended with `error`."""
    return max(error.pause_seconds, FIRST_PAUSE_SECONDS * (1 << num_tries - 1))


def refusal_of(answer: Answer, absent: str) -> HubError | None:
    """Why an answer gives nothing; None where it does.

    Args:
        absent: What there is none of, where it says so.
    """
    code = answer.header("X-Error-Code")
    match answer.status:
        case 200 | 206:
            return None
        case 401 | 403 if code == "GatedRepo":
            return HubGatedError(
                "its licence must be accepted first, by the account of a token that the server has"
            )
        case 404:
            return HubNotFoundError(absent)
        case 401:
            return HubNotFoundError(
                f"{absent}, or it is private and the server has no token that opens it"
            )
        case 403:
            return HubGatedError("the Hub gives this server no access")
        case 429:
            after = answer.header("Retry-After")
            seconds = float(after) if _SECONDS.fullmatch(after) else 0.0
            pause = min(seconds, _MAX_PAUSE_SECONDS)
            return HubBusyError("the Hub has too much to do", pause)
        case status if 400 <= status < 500 and status != 408:
            return HubNotFoundError(f"the Hub does not give it, with status {status}")
        case status if status < 400:
            return HubDamagedError(f"the Hub answers with status {status}")
    return HubUnreachableError(f"the Hub answers with status {answer.status}")


def _document(connection: HubConnection, url: str, absent: str) -> tuple[Any, str | None]:
    """A JSON document, and the URL of the next page of it."""

    def ask() -> tuple[Any, str | None]:
        with connection.get(url) as answer:
            refused = refusal_of(answer, absent)
            if refused is not None:
                raise refused
            body = b"".join(_bounded(connection.chunks(answer)))
            following = _NEXT.search(answer.header("Link"))
        try:
            return json.loads(body), None if following is None else following[1]
        except (ValueError, RecursionError) as error:
            raise HubDamagedError("the Hub's answer is not JSON") from error

    return _trying(connection, ask)


def _bounded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    num_bytes = 0
    for chunk in chunks:
        num_bytes += len(chunk)
        if num_bytes > MAX_PAGE_BYTES:
            raise HubTooLargeError(f"an answer of the Hub is larger than {MAX_PAGE_BYTES} bytes")
        yield chunk


def _page(page: object) -> Iterator[HubFile]:
    try:
        if not isinstance(page, list):
            raise TypeError
        for entry in page:
            if entry["type"] == "file":
                yield _file(entry)
    except (KeyError, TypeError, ValueError) as error:
        raise HubDamagedError("the Hub's list of files is malformed") from error


def _file(entry: Mapping[str, Any]) -> HubFile:
    stored = entry.get("lfs")
    if stored is None:
        file = HubFile(
            path=entry["path"], size_bytes=entry["size"], sha256=None, git_sha1=entry["oid"]
        )
    else:
        file = HubFile(
            path=entry["path"], size_bytes=stored["size"], sha256=stored["oid"], git_sha1=None
        )
    if (
        not isinstance(file.path, str)
        or type(file.size_bytes) is not int  # which excludes a bool
        or file.size_bytes < 0
    ):
        raise ValueError
    form, digest = (_SHA256, file.sha256) if stored is not None else (_GIT_SHA1, file.git_sha1)
    if not isinstance(digest, str) or form.fullmatch(digest) is None:
        raise ValueError
    return file
