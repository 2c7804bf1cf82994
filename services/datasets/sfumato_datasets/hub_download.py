"""Brings files of a commit to this machine: several at once, each resumed where it broke off."""

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from sfumato_datasets.hub_connection import NUM_CONNECTIONS, Answer, HubConnection
from sfumato_datasets.hub_listing import (
    NUM_TRIES,
    HubFile,
    is_whole,
    pause_seconds,
    refusal_of,
)
from sfumato_datasets.hub_request import HubDamagedError, HubUnreachableError

_PART: Final = ".part"
_CONTENT_RANGE: Final = re.compile(r"bytes ([0-9]{1,19})-[0-9]{1,19}/([0-9]{1,19})")
_RANGE_NOT_THERE: Final = 416


class HubDownloads:
    """Fetches files into a folder, each under its key; equal contents once.

    Args:
        folder: Of one import, which may hold what an earlier attempt fetched.
        url: Of a file.
        on_bytes: Called with the key of a file and how many of its bytes are here.
    """

    def __init__(
        self,
        connection: HubConnection,
        folder: Path,
        *,
        url: Callable[[HubFile], str],
        on_bytes: Callable[[str, int], None],
    ) -> None:
        self._connection = connection
        self._folder = folder
        self._url = url
        self._on_bytes = on_bytes

    def fetch(self, files: Sequence[HubFile]) -> Mapping[str, Path]:
        """Where each file lies, by its key.

        Raises:
            HubError: As soon as one cannot be had; the others are given up.
            OSError: There is no space.
        """
        different = {file.key: file for file in files}
        with ThreadPoolExecutor(NUM_CONNECTIONS, thread_name_prefix="fetch") as threads:
            fetching = {key: threads.submit(self._fetch, file) for key, file in different.items()}
            done, waiting = wait(fetching.values(), return_when=FIRST_EXCEPTION)
            if waiting:
                self._connection.abandon()
                threads.shutdown(cancel_futures=True)
        for future in done:
            future.result()  # raises what ended it
        return {key: future.result() for key, future in fetching.items()}

    def _fetch(self, file: HubFile) -> Path:
        whole = self._folder / file.key
        if not self._is_whole(whole, file):
            self._fetch_anew(file, whole.with_name(whole.name + _PART))
            whole.with_name(whole.name + _PART).replace(whole)
        self._on_bytes(file.key, file.size_bytes)
        return whole

    def _fetch_anew(self, file: HubFile, part: Path) -> None:
        """Fetches until the part is whole, or no try brings any further."""
        num_tries = 0
        while not self._is_whole(part, file):
            num_bytes_held = _size_of(part)
            try:
                self._fetch_rest(file, part, num_bytes_held)
                return
            except HubUnreachableError as error:
                num_tries = 1 if _size_of(part) > num_bytes_held else num_tries + 1
                if num_tries >= NUM_TRIES:
                    raise type(error)(f"{file.shown}: {error}") from error
                self._connection.pause(pause_seconds(num_tries, error))

    def _fetch_rest(self, file: HubFile, part: Path, num_bytes_held: int) -> None:
        """Fetches what is missing and checks the whole.

        Raises:
            HubUnreachableError: Another try may bring more.
            HubDamagedError: It never will.
        """
        goes_on = 0 < num_bytes_held < file.size_bytes
        headers = {"Range": f"bytes={num_bytes_held}-"} if goes_on else {}
        with self._connection.get(self._url(file), headers) as answer:
            if goes_on and answer.status == _RANGE_NOT_THERE:
                part.unlink()
                raise HubUnreachableError("the download cannot be resumed")
            _check(answer, file)
            if answer.status == 200:
                num_bytes_held = 0
            elif not _is_range(answer, num_bytes_held, file.size_bytes):
                raise HubDamagedError(f"{file.shown}: the Hub sent another part than was asked for")
            self._write(answer, file, part, num_bytes_held)
        if _size_of(part) < file.size_bytes:
            raise HubUnreachableError("the Hub broke off")
        if not self._is_whole(part, file):
            part.unlink()
            if num_bytes_held:  # what was there before may be to blame
                raise HubUnreachableError("does not fit what was fetched before")
            raise HubDamagedError(f"{file.shown}: its bytes are not those that the Hub announced")

    def _is_whole(self, path: Path, file: HubFile) -> bool:
        return is_whole(path, file, check=self._connection.check)

    def _write(self, answer: Answer, file: HubFile, part: Path, num_bytes_held: int) -> None:
        with part.open("ab" if num_bytes_held else "wb") as written:
            for chunk in self._connection.chunks(answer):
                num_bytes_held += len(chunk)
                if num_bytes_held > file.size_bytes:
                    raise HubDamagedError(f"{file.shown}: longer than the Hub announced")
                written.write(chunk)
                written.flush()  # what is told is there, whatever ends this process
                self._on_bytes(file.key, num_bytes_held)


def _size_of(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _check(answer: Answer, file: HubFile) -> None:
    """Raises HubError where an answer gives no bytes."""
    if not answer.is_of_endpoint and answer.status in (401, 403):
        # The address that the Hub led to is good for minutes; the next try gets a new one.
        raise HubUnreachableError("the address that the Hub gave has expired")
    refused = refusal_of(answer, f"{file.shown}: the Hub no longer has it")
    if refused is not None:
        raise refused


def _is_range(answer: Answer, start: int, size_bytes: int) -> bool:
    found = _CONTENT_RANGE.fullmatch(answer.header("Content-Range"))
    return found is not None and (int(found[1]), int(found[2])) == (start, size_bytes)
