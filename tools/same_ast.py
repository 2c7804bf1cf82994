"""Proves that a change left the syntax tree of every Python file as it was: only comments and layout differ.

Usage: python tools/same_ast.py BASE, where BASE is a revision of git. Docstrings are part of the tree.
"""

import ast
import subprocess
import sys
from pathlib import Path


def changed_files(repository: Path, base: str) -> list[str]:
    """Python files that differ from ``base``, in the working tree or untracked."""
    changed = git(repository, "diff", "--name-only", "--no-renames", "-z", base, "--", "*.py")
    untracked = git(repository, "ls-files", "--others", "--exclude-standard", "-z", "--", "*.py")
    return sorted({*changed.split("\0"), *untracked.split("\0")} - {""})


def git(repository: Path, *arguments: str) -> str:
    """Output of a command of git. Raises SystemExit with its message when it fails."""
    ended = subprocess.run(
        ["git", "-C", repository, *arguments], capture_output=True, text=True, check=False
    )
    if ended.returncode != 0:
        raise SystemExit(ended.stderr.strip())
    return ended.stdout


def difference(repository: Path, base: str, name: str) -> str | None:
    """What became of one file's tree; None when it is the same."""
    path = repository / name
    known = git(repository, "ls-tree", "--name-only", base, "--", name)
    if not known:
        return "is new"
    if not path.is_file():
        return "is gone"
    before = ast.dump(ast.parse(git(repository, "show", f"{base}:{name}")))
    after = ast.dump(ast.parse(path.read_text(encoding="utf-8")))
    return None if before == after else "has another syntax tree"


def main(base: str, repository: Path) -> int:
    names = changed_files(repository, base)
    problems = {name: difference(repository, base, name) for name in names}
    for name, problem in problems.items():
        if problem is not None:
            print(f"{name} {problem}")
    if any(problems.values()):
        return 1
    print(f"{len(names)} changed files, every syntax tree as in {base}")
    return 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    sys.exit(main(sys.argv[1], Path.cwd()))
