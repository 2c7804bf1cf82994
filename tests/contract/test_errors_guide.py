import re
from pathlib import Path

from sfumato_chassis.errors import CATALOGUE, JOB_REASONS

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "errors.md"
ROW = re.compile(r"^\| ([A-Z_]+) \|(?: ([A-Z_]+) \|)? (\S.*) \|$", re.MULTILINE)


def test_the_guide_is_the_catalogue() -> None:
    rows = [match.groups() for match in ROW.finditer(GUIDE.read_text(encoding="utf-8"))]
    of_calls = {reason: status for reason, status, _ in rows if status is not None}
    of_jobs = {reason for reason, status, _ in rows if status is None}
    assert of_calls == {reason.value: kind.status for reason, kind in CATALOGUE.items()}
    assert of_jobs == {reason.value for reason in JOB_REASONS}
    assert len(rows) == len(of_calls) + len(of_jobs)
    assert all(advice.endswith(".") for _, _, advice in rows)
