"""Runs every benchmark, prints a table and keeps the figures.

Usage: python -m benchmarks.run [NAME ...], where each NAME is a module beside this one with
``measure() -> list[Row]``. Exits with 1 when a target is missed.
"""

import importlib
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.rows import Row

FOLDER = Path(__file__).parent
NOT_BENCHMARKS = {"run", "rows", "servers"}
HEAD = ("what", "ours", "floor", "unit", "ratio", "target", "ok")


def names() -> list[str]:
    """Every benchmark there is."""
    return sorted({path.stem for path in FOLDER.glob("[a-z]*.py")} - NOT_BENCHMARKS)


def cells(row: Row) -> tuple[str, ...]:
    """A row as text."""
    return (
        row.what,
        f"{row.ours:.4g}",
        f"{row.floor:.4g}",
        row.unit,
        f"{row.ratio:.2f}",
        f"{'>=' if row.more_is_better else '<='} {row.target:g}",
        "yes" if row.is_met else "NO",
    )


def table(rows: Sequence[Row]) -> str:
    """Aligned columns."""
    lines = [HEAD, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def keep(name: str, rows: Sequence[Row]) -> None:
    """Writes the figures of one benchmark."""
    results = FOLDER / "results"
    results.mkdir(exist_ok=True)
    figures = [{**asdict(row), "ratio": row.ratio, "is_met": row.is_met} for row in rows]
    (results / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def main(wanted: Sequence[str]) -> int:
    rows: list[Row] = []
    for name in wanted or names():
        measured: list[Row] = importlib.import_module(f"benchmarks.{name}").measure()
        keep(name, measured)
        rows += measured
    print(table(rows))
    return 0 if all(row.is_met for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
