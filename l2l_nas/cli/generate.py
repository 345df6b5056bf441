"""`generate`: the best network of a run, a language model, writes on."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from itertools import chain

from l2l_nas.runs.ranks import RunRanks
from l2l_nas.runs.reading import Reading
from l2l_nas.runs.settings import GenerateConf
from l2l_nas.runs.terminal import open_terminal, warn
from l2l_nas.text.generate import Sampling, recomputed

# what would move a terminal's cursor, or change its colours
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def main(conf: GenerateConf, ranks: RunRanks | None = None) -> None:
    """Print the prompt and what follows it, as it comes."""
    reading = Reading(conf, ranks)
    if not reading.ranks.is_first:
        reading.follow()
        return
    sampling = Sampling(conf.temperature, conf.top_k, conf.top_p, conf.seed)
    model = reading.open_model()
    if model.compared:
        print(model.compared, file=sys.stderr)  # beside the text
    position = recomputed(model.server.whole_pool, model.architecture)
    if position is not None:
        warn(
            open_terminal(),
            f"position '{position}' cannot go on token by token (its layer has no `extend`, and no `is_placewise`): "
            "the whole text is computed again for each token",
        )
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # characters that the terminal cannot show

    def show(pieces: Iterator[str]) -> None:
        try:
            for piece in chain([conf.prompt], pieces):
                print(_CONTROLS.sub("\ufffd", piece) if sys.stdout.isatty() else piece, end="", flush=True)
        finally:
            print(flush=True)

    reading.write(conf.prompt, tokens=conf.tokens, sampling=sampling, show=show)
