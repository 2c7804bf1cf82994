"""Reads Parquet files of strangers in a process that may die of it.

Started by `sfumato_datasets.parquet`: `python -m sfumato_datasets.parquet_process REQUEST`, where
REQUEST is JSON. Standard input is the file. Standard output carries lines of JSON: that it is ready,
a list for each row (path, bytes of the image, caption, tags), and what came of it. The images go
to a descriptor that the request names. Where one of both cannot be written, the exit status says why.
"""

import errno
import io
import json
import math
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import types

from sfumato_datasets.captions import (
    MAX_CAPTION_CHARACTERS,
    MAX_SIDECAR_BYTES,
    MAX_TAG_CHARACTERS,
    MAX_TAGS,
    MAX_VARIANTS,
    TAGS_COLUMN,
)
from sfumato_datasets.parquet import (
    READY,
    ParquetDamagedError,
    ParquetError,
    ParquetLimits,
    ParquetQuery,
    ParquetTooLargeError,
    ParquetUnsupportedError,
)

# In memory together with the pages that they are decoded from.
_BATCH_ROWS: Final = 16
# Without it, a column's part of a row group is read as a whole.
_BUFFER_BYTES: Final = 1 << 20
_VERDICT_BYTES: Final = 1 << 16
_MAX_PATH_CHARACTERS: Final = 4096
_MAX_NAMED_COLUMNS: Final = 10
_MAX_NAME_CHARACTERS: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bounds:
    """What is kept of a value: one more than is accepted, so that it is refused where that counts."""

    max_characters: int
    max_items: int = 0


_PATH: Final = _Bounds(max_characters=_MAX_PATH_CHARACTERS)
_CAPTION: Final = _Bounds(max_characters=MAX_CAPTION_CHARACTERS, max_items=MAX_VARIANTS + 2)
_TAGS: Final = _Bounds(max_characters=MAX_TAG_CHARACTERS, max_items=MAX_TAGS + 1)


def main() -> None:
    request = json.loads(sys.argv[1])
    limits = ParquetLimits(**request["limits"])
    _limit(limits)
    _say(READY)
    extraction = _Extraction(
        ParquetQuery(**request["query"]),
        limits,
        io.BufferedWriter(io.FileIO(request["pack_descriptor"], "wb", closefd=False)),
        request["parent_process_id"],
    )
    verdict = _verdict(extraction)
    _say(verdict)


def _limit(limits: ParquetLimits) -> None:
    """What is loaded by now is trusted; only what follows is of strangers."""
    file_bytes = max(limits.max_bytes, limits.max_text_bytes) + _VERDICT_BYTES
    for kind, most in (
        (resource.RLIMIT_AS, limits.memory_limit_bytes),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
        # For when nobody is left to watch the time.
        (resource.RLIMIT_CPU, math.ceil(limits.timeout_seconds) + 1),
    ):
        _, hardest = resource.getrlimit(kind)
        bound = most if hardest == resource.RLIM_INFINITY else min(most, hardest)
        resource.setrlimit(kind, (bound, bound))
    pa.set_cpu_count(1)


def _verdict(extraction: "_Extraction") -> dict[str, Any]:
    try:
        return extraction.run()
    except ParquetError as error:
        return {"reason": error.reason, "message": str(error)}
    except MemoryError:
        message = "reading it takes more memory than allowed"
        return {"reason": ParquetTooLargeError.reason, "message": message}
    except NotImplementedError:
        message = "it is written in a way that is not read"
        return {"reason": ParquetUnsupportedError.reason, "message": message}
    except (pa.ArrowException, OSError, ValueError):
        # Their messages are the file's, or hold more than is the caller's.
        message = "no Parquet, or damaged"
        return {"reason": ParquetDamagedError.reason, "message": message}


@contextmanager
def _writing() -> Iterator[None]:
    """Ends the process where a disk is full; the verdict could not be written either."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise ParquetTooLargeError("more bytes than allowed") from error
        os._exit(error.errno or errno.EIO)


def _say(document: object) -> None:
    with _writing():
        sys.stdout.buffer.write(_line(document))
        sys.stdout.buffer.flush()


def _line(document: object) -> bytes:
    return json.dumps(document).encode("ascii") + b"\n"


class _Extraction:
    """Reads the file at standard input, and writes its rows and images."""

    def __init__(
        self, query: ParquetQuery, limits: ParquetLimits, pack: BinaryIO, parent_process_id: int
    ) -> None:
        self._query = query
        self._limits = limits
        self._pack = pack
        self._parent_process_id = parent_process_id
        self._num_rows = 0
        self._num_bytes = 0
        self._num_text_bytes = 0

    def run(self) -> dict[str, Any]:
        """What to say of a good file."""
        file = pq.ParquetFile(
            sys.stdin.buffer,
            buffer_size=_BUFFER_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
        )
        schema = file.schema_arrow
        image_column = _image_column(schema, self._query.image_column)
        wanted = (image_column, self._query.caption_column, TAGS_COLUMN)
        columns = [name for name in dict.fromkeys(wanted) if _is_there_once(schema, name)]
        for batch in self._batches(file, columns):
            self._take(batch, image_column)
        with _writing():
            self._pack.flush()
        return {
            "image_column": image_column,
            "has_caption_column": self._query.caption_column in columns,
        }

    def _batches(self, file: Any, columns: Sequence[str]) -> Iterator[Any]:
        """As many rows as were asked for."""
        wanted = file.metadata.num_rows if self._query.max_rows is None else self._query.max_rows
        if wanted > self._limits.max_rows and file.metadata.num_rows > self._limits.max_rows:
            raise self._too_many_rows()
        if wanted <= 0:
            return
        batches = file.iter_batches(
            batch_size=min(wanted, _BATCH_ROWS),
            row_groups=_row_groups(file.metadata, wanted),
            columns=columns,
            use_threads=False,
        )
        for batch in batches:
            if os.getppid() != self._parent_process_id:
                os._exit(errno.ESRCH)
            yield batch.slice(0, wanted)
            wanted -= batch.num_rows
            if wanted <= 0:
                return

    def _take(self, batch: Any, image_column: str) -> None:
        captions, tags = (
            batch.column(name) if name in batch.schema.names else None
            for name in (self._query.caption_column, TAGS_COLUMN)
        )
        for row, image in enumerate(batch.column(image_column)):
            self._num_rows += 1
            if self._num_rows > self._limits.max_rows:
                raise self._too_many_rows()
            path, data = _image(image)
            size_bytes = self._keep(data)
            self._describe(
                path,
                size_bytes,
                None if captions is None else _value(captions[row], _CAPTION),
                None if tags is None else _value(tags[row], _TAGS),
            )

    def _keep(self, data: Any) -> int:
        """How many bytes the image has."""
        if data is None:
            return 0
        self._num_bytes += data.size
        if self._num_bytes > self._limits.max_bytes:
            raise ParquetTooLargeError(f"its images take more than {self._limits.max_bytes} bytes")
        with _writing():
            self._pack.write(data)
        return int(data.size)

    def _describe(self, *row: object) -> None:
        line = _line(row)
        self._num_text_bytes += len(line)
        if self._num_text_bytes > self._limits.max_text_bytes:
            raise ParquetTooLargeError(
                f"its captions and names take more than {self._limits.max_text_bytes} bytes"
            )
        with _writing():
            sys.stdout.buffer.write(line)

    def _too_many_rows(self) -> ParquetTooLargeError:
        return ParquetTooLargeError(f"more than {self._limits.max_rows} rows")


def _row_groups(metadata: Any, num_rows: int) -> Sequence[int]:
    """Those that hold the first rows, so that a batch does not reach into a later one."""
    groups = []
    for group in range(metadata.num_row_groups):
        if num_rows <= 0:
            break
        groups.append(group)
        num_rows -= metadata.row_group(group).num_rows
    return groups


def _image_column(schema: Any, chosen: str | None) -> str:
    if chosen is not None:
        if not schema.get_all_field_indices(chosen):
            raise ParquetUnsupportedError(f"no column {_shown([chosen])}")
        if not _is_there_once(schema, chosen):
            raise ParquetUnsupportedError(f"several columns are named {_shown([chosen])}")
        if not _holds_images(schema.field(chosen).type):
            raise ParquetUnsupportedError(f"column {_shown([chosen])} holds no images")
        return chosen
    columns = _image_columns(schema)
    if not columns:
        raise ParquetUnsupportedError("no column holds images")
    if len(columns) > 1:
        raise ParquetUnsupportedError(f"several columns hold images, choose one: {_shown(columns)}")
    if not _is_there_once(schema, columns[0]):
        raise ParquetUnsupportedError(f"several columns are named {_shown(columns)}")
    return columns[0]


def _image_columns(schema: Any) -> Sequence[str]:
    """By what the Hub says of the columns, else by their types, the surest kind alone."""
    fields = [field for field in schema if _holds_images(field.type)]
    for names in (
        [field.name for field in fields if field.name in _features_of_images(schema)],
        [field.name for field in fields if types.is_struct(field.type)],
    ):
        if names:
            return list(dict.fromkeys(names))
    return list(dict.fromkeys(field.name for field in fields))


def _features_of_images(schema: Any) -> frozenset[str]:
    """Names of what the Hub's library calls an image in the metadata that it leaves in a schema."""
    try:
        document = json.loads((schema.metadata or {}).get(b"huggingface", b"null"))
        features = document["info"]["features"].items()
        return frozenset(name for name, feature in features if feature.get("_type") == "Image")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return frozenset()


def _is_there_once(schema: Any, name: str) -> bool:
    """Once; of two columns of a name, neither can be meant."""
    return bool(schema.get_field_index(name) >= 0)


def _shown(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name[:_MAX_NAME_CHARACTERS]) for name in names[:_MAX_NAMED_COLUMNS])
    return shown if len(names) <= _MAX_NAMED_COLUMNS else f"{shown} and more"


def _holds_images(kind: Any) -> bool:
    if types.is_struct(kind):
        index = kind.get_field_index("bytes")
        return index >= 0 and _is_binary(kind.field(index).type)
    return _is_binary(kind)


def _is_binary(kind: Any) -> bool:
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_text(kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_list(kind: Any) -> bool:
    return bool(
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
        or types.is_list_view(kind)
        or types.is_large_list_view(kind)
    )


def _image(scalar: Any) -> tuple[object, Any]:
    """The path that goes with an image, and its bytes; None for what there is not."""
    if not types.is_struct(scalar.type):
        return None, _bytes(scalar)
    if not scalar.is_valid:
        return None, None
    path = None
    if scalar.type.get_field_index("path") >= 0:
        path = _value(scalar["path"], _PATH)
    return path if isinstance(path, str) else None, _bytes(scalar["bytes"])


def _bytes(scalar: Any) -> Any:
    scalar = _plain(scalar)
    return scalar.as_buffer() if scalar.is_valid else None


def _plain(scalar: Any) -> Any:
    """Without the dictionaries and extensions around it."""
    while scalar.is_valid and isinstance(scalar, pa.DictionaryScalar | pa.ExtensionScalar):
        scalar = scalar.value
    return scalar


def _value(scalar: Any, bounds: _Bounds, *, is_item: bool = False) -> object:
    """As JSON has it."""
    scalar = _plain(scalar)
    if not scalar.is_valid:
        return None
    kind = scalar.type
    if _is_text(kind):
        return _text(scalar.as_buffer(), bounds.max_characters)
    if types.is_boolean(kind) or types.is_integer(kind):
        return scalar.as_py()
    if types.is_floating(kind) and math.isfinite(number := float(scalar.as_py())):
        return number
    if _is_list(kind) and not is_item:
        items = scalar.values[: bounds.max_items]
        return [_value(item, bounds, is_item=True) for item in items]
    return {"unsupported": str(kind)[:_MAX_NAME_CHARACTERS]}


def _text(data: Any, max_characters: int) -> str:
    """Bytes that are no UTF-8 become surrogates, which no caption may hold."""
    text = bytes(data[:MAX_SIDECAR_BYTES]).decode("utf-8", "surrogateescape")
    if len(text) > max_characters:
        # A caption is measured without its margins, and with line ends of one character.
        text = text.removeprefix("\ufeff").replace("\r\n", "\n").strip()[: max_characters + 1]
    return text


if __name__ == "__main__":
    main()
