"""Files of Parquet that tests write, and what is extracted of them."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sfumato_datasets.parquet import ExtractedRows, ParquetLimits, ParquetQuery, extract_rows

HUB_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
LIMITS = ParquetLimits(max_bytes=1 << 20)


def never() -> bool:
    return False


@dataclass
class ParquetBench:
    """A file, and the pack that its images go to, in a folder that holds nothing else."""

    folder: Path

    @classmethod
    def in_folder(cls, folder: Path) -> "ParquetBench":
        folder.mkdir()
        return cls(folder)

    @property
    def file(self) -> Path:
        return self.folder / "file.parquet"

    @property
    def pack(self) -> Path:
        return self.folder / "pack"

    def write(self, columns: dict[str, Any], metadata: object = None, **options: Any) -> None:
        table = pa.table(columns)
        if metadata is not None:
            table = table.replace_schema_metadata({"huggingface": json.dumps(metadata)})
        pq.write_table(table, self.file, **options)

    def extract(
        self,
        image: str | None = None,
        caption: str = "text",
        max_rows: int | None = None,
        limits: ParquetLimits = LIMITS,
        cancelled: Callable[[], bool] = never,
        **options: Any,
    ) -> ExtractedRows:
        self.pack.unlink(missing_ok=True)
        query = ParquetQuery(image_column=image, caption_column=caption, max_rows=max_rows)
        try:
            found = extract_rows(
                self.file, self.pack, query, limits, cancelled=cancelled, **options
            )
        except BaseException:
            assert os.listdir(self.folder) == [self.file.name]
            raise
        assert sorted(os.listdir(self.folder)) == [self.file.name, self.pack.name]
        return found

    def images(self, found: ExtractedRows) -> list[bytes]:
        data = self.pack.read_bytes()
        assert sum(row.size_bytes for row in found.rows) == len(data)
        return [data[row.offset : row.offset + row.size_bytes] for row in found.rows]

    def captions(self, column: object) -> list[object]:
        """As they are read from a column of them."""
        self.write({"image": [b"x"] * len(column), "text": column})
        return [row.caption for row in self.extract("image").rows]


def hub_column(num_images: int = 3) -> pa.Array:
    images = [{"bytes": b"%d" % each * each, "path": f"{each}.png"} for each in range(num_images)]
    return pa.array(images, HUB_IMAGE)


def features(*names: str) -> dict[str, object]:
    return {"info": {"features": {name: {"_type": "Image"} for name in names}}}
