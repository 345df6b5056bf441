"""Which slow proofs are due: those of the rooms that changed since the last release.

    python -m tests.changed [COMMIT]

Prints paths for pytest, one a line. COMMIT is the last release: by default the newest tag `v*`, or what `.ci/released`
names, where all slow proofs passed last. Changes that are not committed count.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
# rooms whose changes could move a result of training, whatever test shows it
_ENGINE = ("space", "eps", "relay", "layers")
_SETTINGS = ("conf", "search_spaces")


def due(changed: Iterable[str]) -> list[str]:
    """Tests to run slow proofs of, as paths from the root, when these files changed."""
    found: set[str] = set()
    for name in changed:
        first, *rest = Path(name).parts
        if first == "tests" and rest[-1].startswith("test_"):  # which moves no other proof
            found.add(name)
        elif first in ("l2l_nas", "tests") and len(rest) > 1:
            found.update((f"tests/{rest[0]}", f"tests/test_{rest[0]}.py"))
            if rest[0] == "runs":
                found.add("tests/cli")
            if rest[0] in _ENGINE:
                found.update(("tests/equivalence", "tests/accelerator"))
        elif first == "benchmarks":
            found.add("tests/benchmarks")
        elif first in _SETTINGS:
            found.update(("tests/cli", "tests/test_spaces.py", "tests/test_language_spaces.py"))
        else:  # documents, the package's face, what is installed
            found.update(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").glob("test_*.py"))
    return sorted(path for path in found if (ROOT / path).exists())


def last_release() -> str:
    """The newest tag `v*` that leads here, or the commit that `.ci/released` names."""
    tag = subprocess.run(
        ["git", "describe", "--tags", "--abbrev=0", "--match", "v*"], cwd=ROOT, capture_output=True, text=True
    )
    return tag.stdout.strip() or (ROOT / ".ci" / "released").read_text().strip()


def changed_since(commit: str) -> list[str]:
    """Files that differ from this commit, from the root; all tests where a shallow clone does not know it."""
    found = subprocess.run(
        ["git", "diff", "--name-only", "--no-renames", commit], cwd=ROOT, capture_output=True, text=True
    )
    if found.returncode == 0:
        return found.stdout.splitlines()
    return [path.relative_to(ROOT).as_posix() for path in (*(ROOT / "l2l_nas").rglob("*.py"), ROOT / "README.md")]


if __name__ == "__main__":
    print("\n".join(due(changed_since(sys.argv[1] if len(sys.argv) > 1 else last_release()))))
