from pathlib import Path

from sfumato_datasets.staging import Staging


def test_folders_of_imports_that_have_ended_are_removed(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    assert staging.imports() == []
    for job in ("import-1", "import-2"):
        staging.of_import(job).mkdir(parents=True)
        (staging.of_import(job) / "file").write_bytes(b"bytes")
    assert sorted(staging.imports()) == ["import-1", "import-2"]
    staging.remove(["import-1", "import-3"])
    assert staging.imports() == ["import-2"]
    assert (staging.of_import("import-2") / "file").read_bytes() == b"bytes"
