"""`export`: write the best network of a run as plain PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from l2l_nas.cli.launch import report
from l2l_nas.cli.locate import shipped
from l2l_nas.cli.runs import RunFolder, load_found
from l2l_nas.cli.schema import ExportConf
from l2l_nas.errors import L2LError
from l2l_nas.training.export import export_network


@hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name="export")
def main(config: DictConfig) -> None:
    """Write the files and say how to load them."""
    conf: ExportConf = OmegaConf.to_object(config)  # type: ignore[assignment]
    try:
        found = load_found(conf.run, pool=conf.pool)
        folder = Path(conf.out) if conf.out else RunFolder(Path(conf.run)).export
        example = tuple(tensor[:4] for tensor in found.problem.data.validation.inputs)
        files = export_network(found.server, found.architecture, folder, example=example)
    except L2LError as error:
        sys.exit(report(str(error)))
    console = Console(highlight=False)
    for path in files:
        console.print(f"  {path}", soft_wrap=True)
    console.print(f'load it with: torch.export.load("{files[0]}").module()', soft_wrap=True)
