"""A task of lm-evaluation-harness in one YAML file, of which nothing can run code.

The harness fills templates by jinja2 without a sandbox, and loads what metrics it does not know. So keys, metrics, and
what a template may say are listed here; anything else is refused.
"""

from __future__ import annotations

import glob
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateSyntaxError, nodes

from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.files import read_yaml

# kinds of local files that tasks may be of
_FILES = ("json", "csv", "text", "parquet", "arrow")
_KEYS = frozenset(
    {
        "task", "task_alias", "tag", "dataset_path",
        "dataset_name", "dataset_kwargs", "training_split", "validation_split",
        "test_split", "fewshot_split", "output_type", "doc_to_text",
        "doc_to_target", "doc_to_choice", "gen_prefix", "description",
        "target_delimiter", "fewshot_delimiter", "num_fewshot", "generation_kwargs",
        "metric_list", "filter_list", "repeats", "metadata",
    }
)  # fmt: skip
_METRIC_KEYS = frozenset(
    {
        "metric", "aggregation", "higher_is_better", "ignore_case",
        "ignore_punctuation", "ignore_numbers", "regexes_to_ignore",
    }
)  # fmt: skip
_METHODS = frozenset(
    {
        "strip", "lstrip", "rstrip", "lower",
        "upper", "capitalize", "title", "replace",
        "split", "join", "startswith", "endswith",
    }
)  # fmt: skip
_FILTERS = frozenset(
    {
        "trim", "lower", "upper", "capitalize",
        "title", "length", "first", "last",
        "join", "replace", "default", "int",
        "float", "string", "list", "round",
        "regex_replace",
    }
)  # fmt: skip
_NODES = (
    *(nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.List, nodes.Tuple, nodes.Dict),
    *(nodes.Pair, nodes.Keyword, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Call, nodes.Filter, nodes.Test),
    *(nodes.If, nodes.CondExpr, nodes.For, nodes.Assign, nodes.BinExpr, nodes.UnaryExpr, nodes.Compare, nodes.Operand),
    nodes.Concat,
)


def read_task(file: Path, *, metrics: Collection[str]) -> dict[str, Any]:
    """A task on local files.

    Args:
        metrics: names of those that the harness has itself.

    Raises:
        StorageError: the file cannot be read, or names code of its own (`!function`).
        SettingError: no task, or one whose data are not files of this machine; a key, a metric or a template that could
            run code.
    """
    task = read_yaml(file)
    if not isinstance(task.get("task"), str):
        raise SettingError(f"{file}: no task of the harness: it needs a name, task: NAME")
    _only(task, _KEYS, file, "the whole task must be in this file, without code")
    options = task.get("dataset_kwargs")
    files = options.get("data_files") if isinstance(options, dict) else None
    if task.get("dataset_path") not in _FILES or not files or set(options or ()) != {"data_files"} or _is_far(files):
        kinds = ", ".join(_FILES)
        raise SettingError(
            f"{file}: its data must be files of this machine: dataset_path: {kinds}; dataset_kwargs: data_files"
        )
    listed = task.get("metric_list") or []
    for metric in listed if isinstance(listed, list) else [listed]:
        if not isinstance(metric, dict) or metric.get("metric") not in metrics:
            named = metric.get("metric") if isinstance(metric, dict) else metric
            raise SettingError(
                f"{file}: metric_list: expected a metric of the harness as metric: NAME, got {named}"
                f"{did_you_mean(str(named), metrics)}"
            )
        _only(metric, _METRIC_KEYS, file, "not of a metric")
    for text in _texts({name: value for name, value in task.items() if name not in ("dataset_kwargs", "metadata")}):
        if (what := _refused(text)) is not None:
            raise SettingError(f"{file}: a template may not have {what}: {text.strip()}")
    return task


def files_of(file: Path) -> list[Path]:
    """The files that a task's samples are in; patterns name those that there are.

    Args:
        file: of a task that `read_task` takes.

    Raises:
        StorageError: the file cannot be read.
    """
    named = _texts(read_yaml(file)["dataset_kwargs"]["data_files"])
    return [path for text in named for path in map(Path, sorted(glob.glob(text, recursive=True))) if path.is_file()]


def _only(given: Mapping[str, Any], known: Collection[str], file: Path, why: str) -> None:
    for name in given:
        if name not in known:
            raise SettingError(f"{file}: '{name}' is not taken: {why}{did_you_mean(str(name), known)}")


def _is_far(files: Any) -> bool:
    return any("://" in text for text in _texts(files))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(one)


def _refused(text: str) -> str | None:
    """What a template may not have; None if it has nothing of the kind."""
    try:
        tree = Environment(autoescape=True).parse(text)
    except TemplateSyntaxError as error:
        return f"this syntax ({error.message})"
    for node in [tree, *tree.find_all(nodes.Node)]:
        if isinstance(node, nodes.Call):
            if not (isinstance(node.node, nodes.Getattr) and node.node.attr in _METHODS):
                return "calls but of " + ", ".join(sorted(_METHODS))
        elif isinstance(node, nodes.Filter):
            if node.name not in _FILTERS:
                return f"the filter '{node.name}'"
        elif isinstance(node, nodes.Getattr):
            if node.attr.startswith("_"):
                return f"the name '{node.attr}'"
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
            if str(node.arg.value).startswith("_"):
                return f"the name '{node.arg.value}'"
        elif not isinstance(node, (*_NODES, nodes.EvalContextModifier)) and not isinstance(node, nodes.Helper):
            return f"a {type(node).__name__.lower()}"
    return None
