"""`python -m benchmarks NAME [options]` measures one thing; without a name, all that can be measured are listed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.catalogue import ROOMS, find
from benchmarks.options import OptionParser
from l2l_nas.errors import one_line
from l2l_nas.runs.terminal import explain, is_explained


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 done, 1 something is not as it should be, 2 bad input, 130 stopped."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0
    name = words.pop(0)
    try:
        script = find(name)
        parser = OptionParser(name, (script.__doc__ or "").strip())
        script.add_options(parser)
        return script.main(parser.parse_intermixed_args(words)) or 0
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except subprocess.CalledProcessError as error:  # it has said why
        print(f"error: exit code {error.returncode}: {shlex.join(map(str, error.cmd))}", file=sys.stderr)
        return 1
    except Exception as error:
        if not is_explained(error):
            raise
        print(f"error: {one_line(explain(error))}", file=sys.stderr)
        return 2


def overview() -> str:
    lines = ["usage: python -m benchmarks NAME [options]; python -m benchmarks NAME --help lists the options"]
    for room, group in ROOMS.items():
        lines += ["", f"{room}:", *(f"  {name:18} {about} ({takes})" for name, (about, takes) in group.items())]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
