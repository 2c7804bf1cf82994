"""A small Hub over HTTP: datasets with commits, a paged list of files, redirects to where bytes lie.

It answers as the Hugging Face Hub does where an import asks it, and can be told to misbehave.
"""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

LFS_SUFFIXES = (".png", ".jpg", ".parquet")
SIGNATURE = "X-Signature=canary-of-a-signed-address"


def git_sha1(content: bytes) -> str:
    """Git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass
class HubDataset:
    """A dataset with its commits. `token`: without it everything is refused; `gated`: even with it."""

    commits: dict[str, Mapping[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    token: str = ""
    gated: bool = False

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """A new commit, to which the branch moves."""
        listed = sorted((path, git_sha1(content)) for path, content in files.items())
        sha = hashlib.sha1(repr((listed, len(self.commits))).encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.refs[branch] = sha
        return sha


Answer = Callable[["HubHandler"], None]


class HubServer:
    """Serves until it is closed.

    Attributes:
        url: Its endpoint.
        faults: The next requests whose path contains the key are answered by these instead; one that
            returns without having answered lets the honest answer follow.
        requests: Every (path, headers) so far.
        cdn: Scheme, host and port of where it leads to for bytes; its own by default.
    """

    def __init__(self, *, tls: ssl.SSLContext | None = None, page_size: int = 1000) -> None:
        self.datasets: dict[str, HubDataset] = {}
        self.renamed: dict[str, str] = {}
        self.faults: dict[str, deque[Answer]] = {}
        self.requests: list[tuple[str, Mapping[str, str]]] = []
        self.page_size = page_size
        self.lock = threading.Lock()
        hub = self

        class Handler(HubHandler):
            server_hub = hub

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        scheme = "http" if tls is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.cdn = ""
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def fault(self, part: str, *answers: Answer) -> None:
        """Answers the next requests whose path contains `part`."""
        self.faults.setdefault(part, deque()).extend(answers)

    def paths(self, part: str) -> list[str]:
        """Of the requests that contain `part`."""
        return [path for path, _ in self.requests if part in path]

    def dataset(self, name: str) -> HubDataset:
        """The dataset of that name, made where there is none."""
        return self.datasets.setdefault(name, HubDataset())


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *arguments: object) -> None:
        """Those who hang up are part of the tests."""


@contextmanager
def hub_server(**settings: Any) -> Iterator[HubServer]:
    """A server that is closed at the end."""
    server = HubServer(**settings)
    try:
        yield server
    finally:
        server.close()


class HubHandler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server_hub: HubServer

    def log_message(self, *arguments: object) -> None:
        """Nothing is printed."""

    def do_GET(self) -> None:
        hub = self.server_hub
        with hub.lock:
            hub.requests.append((self.path, dict(self.headers.items())))
            waiting = next(
                (faults for part, faults in hub.faults.items() if part in self.path and faults),
                None,
            )
            fault = waiting.popleft() if waiting else None
        self.answered = False
        if fault is not None:
            fault(self)
        if self.answered:
            return
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        if path.startswith("/cdn/"):
            self.give_bytes(self._stored(path.removeprefix("/cdn/")))
            return
        for name, dataset in hub.datasets.items():
            for prefix, give in (
                (f"/api/datasets/{name}/revision/", self._give_revision),
                (f"/api/datasets/{name}/tree/", self._give_tree),
                (f"/datasets/{name}/resolve/", self._give_file),
            ):
                if path.startswith(prefix) and self._may_read(dataset, give == self._give_file):
                    give(name, dataset, path.removeprefix(prefix))
                if path.startswith(prefix):
                    return
        for old, new in hub.renamed.items():
            if f"datasets/{old}/" in self.path:
                self.give(307, headers={"Location": self.path.replace(old, new)})
                return
        self.give(401, headers={"X-Error-Code": "RepoNotFound"})

    def give(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> None:
        """A whole answer."""
        self.answered = True
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def give_json(self, document: object, headers: Mapping[str, str] | None = None) -> None:
        self.give(200, json.dumps(document).encode(), headers)

    def give_bytes(self, content: bytes | None, *, break_off_after: int | None = None) -> None:
        """Bytes, or the range of them that was asked for; perhaps not all of those announced."""
        if content is None:
            self.give(404, headers={"X-Error-Code": "EntryNotFound"})
            return
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        body = content[start:]
        headers = {"Content-Length": str(len(body))}
        if "Range" in self.headers:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.answered = True
        self.send_response(206 if "Range" in self.headers else 200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:break_off_after])
        self.close_connection = break_off_after is not None

    def _may_read(self, dataset: HubDataset, is_file: bool) -> bool:
        if dataset.token and self.headers.get("Authorization") != f"Bearer {dataset.token}":
            self.give(401, headers={"X-Error-Code": "RepoNotFound"})
            return False
        if dataset.gated and is_file:
            self.give(403, headers={"X-Error-Code": "GatedRepo"})
            return False
        return True

    def _give_revision(self, name: str, dataset: HubDataset, revision: str) -> None:
        sha = revision if revision in dataset.commits else dataset.refs.get(revision)
        if sha is None:
            self.give(404, headers={"X-Error-Code": "RevisionNotFound"})
        else:
            self.give_json({"id": name, "sha": sha, "private": bool(dataset.token)})

    def _give_tree(self, name: str, dataset: HubDataset, rest: str) -> None:
        sha, _, folder = rest.partition("/")
        paths = [
            path
            for path in sorted(dataset.commits[sha])
            if not folder or path.startswith(f"{folder}/")
        ]
        if not paths:
            self.give(404, headers={"X-Error-Code": "EntryNotFound"})
            return
        size = self.server_hub.page_size
        start = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        entries: list[object] = [{"type": "directory", "oid": "0" * 40, "size": 0, "path": "data"}]
        for path in paths[start : start + size]:
            content = dataset.commits[sha][path]
            entry: dict[str, object] = {
                "type": "file",
                "oid": git_sha1(content),
                "size": len(content),
                "path": path,
            }
            if path.endswith(LFS_SUFFIXES):
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
            entries.append(entry)
        headers = {}
        if start + size < len(paths):
            url = f"{self.server_hub.url}{self.path.partition('&cursor')[0]}&cursor={start + size}"
            headers["Link"] = f'<{url}>; rel="next"'
        self.give_json(entries, headers)

    def _give_file(self, name: str, dataset: HubDataset, rest: str) -> None:
        sha, _, path = rest.partition("/")
        content = dataset.commits.get(sha, {}).get(path)
        if content is None or not path.endswith(LFS_SUFFIXES):
            self.give_bytes(content)
            return
        digest = hashlib.sha256(content).hexdigest()
        target = f"{self.server_hub.cdn}/cdn/{quote(digest)}?{SIGNATURE}"
        self.give(302, headers={"Location": target})

    def _stored(self, digest: str) -> bytes | None:
        for dataset in self.server_hub.datasets.values():
            for files in dataset.commits.values():
                for content in files.values():
                    if hashlib.sha256(content).hexdigest() == digest:
                        return content
        return None


def fill_cache(cache: Path, name: str, sha: str, files: Mapping[str, bytes]) -> Path:
    """Lays a commit out as the Hub's library does; answers the repository's folder."""
    repository = cache / f"datasets--{name.replace('/', '--')}"
    for path, content in files.items():
        blob = repository / "blobs" / hashlib.sha256(content).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link = repository / "snapshots" / sha / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    (repository / "refs" / "main").write_text(sha)
    return repository
