import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ROOT / "tools"


def run(*command: str | Path, cwd: Path) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, *map(str, command)], cwd=cwd, capture_output=True, text=True
    )
    return ended.returncode, ended.stdout + ended.stderr


def function_of(num_lines: int) -> str:
    return "def long():\n" + "    x = 1\n" * (num_lines - 1)


def test_the_repository_keeps_its_sizes() -> None:
    assert run(TOOLS / "check_sizes.py", cwd=ROOT) == (0, "")


@pytest.mark.parametrize(
    ("path", "text", "told"),
    [
        ("libs/a/b.py", "x = 1\n" * 421, "libs/a/b.py: 421 lines"),
        ("tests/test_a.py", function_of(61), "tests/test_a.py::long: 61 lines"),
        ("services/a/b.py", "async " + function_of(61), "services/a/b.py::long: 61 lines"),
        ("protos/a/b.proto", "\n" * 421, "protos/a/b.proto: 421 lines"),
    ],
)
def test_what_is_too_long_is_named(tmp_path: Path, path: str, text: str, told: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(text)
    code, output = run(TOOLS / "check_sizes.py", tmp_path, cwd=tmp_path)
    assert code == 1
    assert told in output


def test_what_is_at_its_limit_passes(tmp_path: Path) -> None:
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "a.py").write_text(function_of(60) + "\n" * 360)
    assert run(TOOLS / "check_sizes.py", tmp_path, cwd=tmp_path) == (0, "")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "a.py").write_text('"""Says."""\n\n\ndef f(x):\n    return x + 1\n')
    (tmp_path / "b.py").write_text("y = 1\n")
    for command in (
        ["init", "--quiet"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "first"],
    ):
        subprocess.run(["git", "-C", tmp_path, *command], check=True)
    return tmp_path


def test_comments_and_layout_leave_the_tree(repository: Path) -> None:
    (repository / "a.py").write_text(
        '"""Says."""\n\n# Why.\ndef f(x):\n    return (\n        x + 1  # more\n    )\n'
    )
    code, output = run(TOOLS / "same_ast.py", "HEAD", cwd=repository)
    assert (code, output) == (0, "1 changed files, every syntax tree as in HEAD\n")


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("a.py", '"""Says."""\n\n\ndef f(x):\n    return x + 2\n', "a.py has another syntax tree"),
        ("a.py", '"""Says more."""\n\n\ndef f(x):\n    return x + 1\n', "another syntax tree"),
        ("c.py", "z = 1\n", "c.py is new"),
        ("b.py", None, "b.py is gone"),
    ],
)
def test_anything_else_is_named(repository: Path, name: str, text: str | None, told: str) -> None:
    if text is None:
        (repository / name).unlink()
    else:
        (repository / name).write_text(text)
    code, output = run(TOOLS / "same_ast.py", "HEAD", cwd=repository)
    assert code == 1
    assert told in output


def test_an_unknown_base_is_an_error(repository: Path) -> None:
    code, output = run(TOOLS / "same_ast.py", "no-such-revision", cwd=repository)
    assert code == 1
    assert "no-such-revision" in output
