"""`generate`: the best network of a run, a language model, writes on."""

from __future__ import annotations

import io
import re
import sys
from itertools import chain

from l2l_nas.runs.language import LanguageModel, executor_of, is_small, open_model, whole, write_on
from l2l_nas.runs.mesh import NetworkRanks
from l2l_nas.runs.settings import GenerateConf
from l2l_nas.runs.terminal import open_terminal, warn
from l2l_nas.text.generate import Sampling, recomputed
from l2l_nas.training.consensus import Consensus

# what would move a terminal's cursor, or change its colours
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def main(conf: GenerateConf, consensus: Consensus | None = None) -> None:
    """Print the prompt and what follows it, as it comes."""
    ranks = NetworkRanks.of(conf.parallel, consensus)
    consensus = ranks.consensus
    sampling = Sampling(conf.temperature, conf.top_k, conf.top_p, conf.seed)
    with consensus.working("the reading of the weights"):
        model = open_model(conf.run, pool=conf.space.pool, tokenizer=conf.tokenizer, ranks=ranks)
    if consensus.size == 1 or not consensus.first(lambda: is_small(model)):
        _write(conf, model, sampling)
        return
    model = whole(model)  # of a small model, ranks would only wait for each other
    if consensus.is_first:
        with consensus.alone("the writing of a text"):
            _write(conf, model, sampling)


def _write(conf: GenerateConf, model: LanguageModel, sampling: Sampling) -> None:
    if model.compared:
        print(model.compared, file=sys.stderr)  # beside the text
    executor = executor_of(model)
    position = recomputed(executor, model.architecture)
    if position is not None:
        warn(
            open_terminal(),
            f"position '{position}' cannot go on token by token (its layer has no `extend`, and no `is_placewise`): "
            "the whole text is computed again for each token",
        )
    pieces = write_on(model, conf.prompt, tokens=conf.tokens, sampling=sampling, executor=executor)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # characters that the terminal cannot show
    try:
        for piece in chain([conf.prompt], pieces):
            print(_CONTROLS.sub("\ufffd", piece) if sys.stdout.isatty() else piece, end="", flush=True)
    finally:
        print(flush=True)
