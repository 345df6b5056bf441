"""`generate`: the best network of a run, a language model, writes on."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig

from l2l_nas.cli.launch import reporting_errors, settings_of
from l2l_nas.runs.bounds import check_bounds
from l2l_nas.runs.groups import shipped
from l2l_nas.runs.language import executor_of, open_model, write_on
from l2l_nas.runs.settings import GenerateConf
from l2l_nas.runs.terminal import open_terminal, warn
from l2l_nas.text.generate import Sampling, recomputed


@hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name="generate")
def main(config: DictConfig) -> None:
    """Print the prompt and what follows it, as it comes."""
    conf: GenerateConf = settings_of(config)
    with reporting_errors():
        _generate(conf)


def _generate(conf: GenerateConf) -> None:
    check_bounds(conf)
    sampling = Sampling(conf.temperature, conf.top_k, conf.top_p, conf.seed)
    model = open_model(conf.run, pool=conf.space.pool, tokenizer=conf.tokenizer)
    executor = executor_of(model)
    position = recomputed(executor, model.architecture)
    if position is not None:
        warn(
            open_terminal(),
            f"position '{position}' cannot go on token by token (its layer has no `extend`, and no `is_placewise`): "
            "the whole text is computed again for each token",
        )
    pieces = write_on(model, conf.prompt, tokens=conf.tokens, sampling=sampling, executor=executor)
    print(conf.prompt, end="", flush=True)
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    finally:
        print(flush=True)
