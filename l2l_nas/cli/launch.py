"""Passes a command to Hydra, and reports whatever goes wrong in one line and an exit code."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import logging
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any
from urllib.parse import unquote

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from l2l_nas.cli.names import check_words, config_folders, is_sweep, nearest, no_setting
from l2l_nas.cli.schema import register, with_own_choices
from l2l_nas.errors import (
    SettingError,
    StorageError,
    described,
    did_you_mean,
    one_line,
    what_raised,
    without_passwords,
)
from l2l_nas.plugins import is_named
from l2l_nas.runs.bounds import check_bounds
from l2l_nas.runs.command_line import as_text, fill_in
from l2l_nas.runs.explain import explain, is_explained
from l2l_nas.runs.fields import settings
from l2l_nas.runs.groups import ABOUT, choices, shipped
from l2l_nas.runs.settings import COMMANDS, PASSWORD_VARIABLE, SweeperConf

# Hydra's flags; those of the second set take the next word
_FLAGS = {"--hydra-help", "--version", "--run", "-r", "--multirun", "-m", "--resolve"}
_TAKES_VALUE = {"--config-dir", "-cd", "--config-path", "-cp", "--config-name", "-cn", "--cfg", "-c", "--package", "-p"}
_TAKES_VALUE |= {"--info", "-i"}


def launch(command: str, words: list[str], *, is_program: bool = False) -> int:
    """Run a command under Hydra; returns the exit code.

    Args:
        is_program: whether this process does nothing else: then Python's collector never walks through what was
            imported, which would take a sixth of the processor time of a start.
    """
    register(command)
    # Hydra would print a traceback and exit with 1; this way its errors come here
    os.environ["HYDRA_FULL_ERROR"] = "1"
    before = sys.argv
    flags: list[str] = []
    overrides: list[str] = []
    try:
        flags, overrides = _sort(words)
        check_words(command, flags, overrides)
        overrides = [as_text(word) for word in overrides]
        with _signals(_leave):
            module = importlib.import_module(f"l2l_nas.cli.{command}")
            if is_program:
                gc.freeze()
                gc.enable()
            overrides = _resumed(command, overrides, is_sweep=is_sweep(flags, overrides))
            overrides = with_own_choices(command, overrides)
        with (
            _logging_as_it_was(),
            _shown_without_passwords(flags),
            _password_aside(overrides),
            _signals(signal.default_int_handler),
        ):
            sys.argv = [f"l2l_nas {command}", *flags, *overrides]
            with _around(command) if is_sweep(flags, overrides) else contextlib.nullcontext():
                module.main()
    except SystemExit as stop:
        if not _is_ours(stop):
            return report(f"your code {what_raised(stop)}")
        return stop.code if isinstance(stop.code, int) else 1
    except (HydraException, OmegaConfBaseException) as error:
        return report(_explain(command, error, overrides))
    except yaml.YAMLError as error:
        return report(_explain_yaml(error))
    except UnicodeDecodeError as error:
        path = _unreadable(config_folders(flags))
        if path is None:
            raise
        return report(f"{path}: not a text in UTF-8 ({error.reason})")
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except Exception as error:
        if not is_explained(error):
            raise  # a mistake of this program: its traceback helps to mend it
        return report(explain(error))
    finally:
        sys.argv = before
    return 0


def _around(command: str) -> contextlib.AbstractContextManager[None]:
    """What a sweep ends with where it does not end by itself."""
    from l2l_nas.cli.sweep import sweeping  # it prints its errors by means of this module

    return sweeping(command)


@contextlib.contextmanager
def reporting_errors(again: str = "") -> Iterator[None]:
    """Around what a command does: an error that can be explained ends it with one line and exit code 2.

    Hydra, which calls the command, would print all settings in front of it.

    Args:
        again: the command that goes on, where there is a run to go on with.
    """
    try:
        yield
    except Exception as error:
        if not is_explained(error):
            raise
        sys.exit(report(fill_in(explain(error), again)))


def command(name: str) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """Make a command of a function that takes its settings: Hydra calls it, and its errors are reported."""

    def made(work: Callable[[Any], None]) -> Callable[[], None]:
        @hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name=name)
        @functools.wraps(work)
        def main(config: DictConfig) -> None:
            conf = settings_of(config)
            with reporting_errors():
                check_bounds(conf)
                work(conf)

        return main

    return made


def settings_of(config: DictConfig) -> Any:
    """A command's settings as the dataclass that they are. A value that is missing, or that leads nowhere, ends it.

    In a sweep it raises: the sweep tells which run it was.
    """
    try:
        return OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            raise
        sys.exit(report(_explain_value(error, sys.argv[1:])))


def _is_ours(stop: SystemExit) -> bool:
    """Whether an exit is one that this program or Hydra asked for, and not code of the user's."""
    frame = stop.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    asked = frame.tb_frame.f_globals.get("__name__", "") if frame is not None else ""
    return str(asked).split(".")[0] in ("l2l_nas", "hydra", "argparse")


@contextlib.contextmanager
def _signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Ctrl-C and SIGTERM do this meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    before = [(number, signal.signal(number, handler)) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        yield
    finally:
        for number, old in before:
            signal.signal(number, old)


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: an exception in the middle of importing a C library comes out as some other error."""
    os.write(2, b"stopped\n")
    os._exit(130)


def report(message: str) -> int:
    """Print an error as one line; returns the exit code of bad input."""
    print("error: " + one_line(fill_in(message)), file=sys.stderr)
    return 2


def _sort(words: list[str]) -> tuple[list[str], list[str]]:
    """Flags before overrides: Hydra's parser refuses them mixed."""
    flags: list[str] = []
    overrides: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            if not re.sub(r"^[+~]+", "", word).partition("=")[0]:
                raise SettingError(f"'{word}' is not a setting; write NAME=VALUE")
            overrides.append(word)
            continue
        if word in ("--shell-completion", "-sc"):
            raise SettingError('completion is that of the program: eval "$(l2l-nas --completion)"')
        if word.split("=")[0] not in _FLAGS | _TAKES_VALUE:
            raise SettingError(f"no flag '{word}'; settings are written NAME=VALUE, --help lists them")
        flags.append(word)
        if word in _TAKES_VALUE:
            value = next(rest, None)
            if value is None and word not in ("--info", "-i"):
                raise SettingError(f"{word} takes a value behind it; --hydra-help tells which")
            flags += [value] if value is not None else []
    return flags, overrides


def _resumed(command: str, overrides: list[str], *, is_sweep: bool) -> list[str]:
    """A run goes on in its own folder; so does a sweep, each run in its own below, with the words of its start."""
    from l2l_nas.runs.inherit import SWEEP_CONFIG, given_names, is_choice, sweep_settings, sweep_words

    values = {name: word.partition("=")[2] for word in overrides for name in given_names([word])}
    if not values.get("resume") or (is_sweep and "," in values["resume"]):
        return overrides
    if not is_sweep and {"folder", "hydra.run.dir"} & set(values):
        return overrides
    root = Path(str(OverridesParser.create().parse_override(f"resume={values['resume']}").value()))
    if not root.is_dir():
        raise StorageError(f"resume={values['resume']}: no such folder")
    if not is_sweep:
        return [*overrides, f"folder={values['resume']}"]
    folder = OverridesParser.create().parse_override(f"folder={values.get('folder', values['resume'])}").value()
    if Path(str(folder)) != root or "hydra.sweep.dir" in values:
        raise SettingError(f"resume={root}: a sweep goes on in its own folder; leave folder= and hydra.sweep.dir= out")
    taken: list[str] = []
    if (root / SWEEP_CONFIG).is_file():
        taken, left = sweep_words(root, sweep_settings(command))
        names = set(values)
        covered = names | ({"space.pool"} if "space" in names else set())
        taken = [word for word in taken if not given_names([word]) & covered]
        left = [word for word in left if not given_names([word]) & covered]
        if own := [word for word in left if is_choice(word)]:
            # with others in its place the runs could not be compared
            words = shlex.join(own)
            raise SettingError(f"{root}: that sweep has a choice of your own; name it again: {words}")
        if left:
            print(f"not taken over from {root}, say it again if you want it: {shlex.join(left)}")
    return [*taken, *overrides, f"folder={values['resume']}"]


@contextlib.contextmanager
def _shown_without_passwords(flags: list[str]) -> Iterator[None]:
    """What Hydra prints of the settings."""
    if not {flag.split("=")[0] for flag in flags} & {"--cfg", "-c", "--info", "-i"}:
        yield
        return
    printed = io.StringIO()
    try:
        with contextlib.redirect_stdout(printed):
            yield
    finally:
        print("\n".join(without_passwords(line) for line in printed.getvalue().splitlines()))


@contextlib.contextmanager
def _logging_as_it_was() -> Iterator[None]:
    """With --info and hydra.verbose Hydra has the whole process log everything, and goes on to do so.

    It would compose the settings six times more in each later command of this process, to log them.
    """
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


_PASSWORD = re.compile(r"(\+*search\.storage=[\"']?[A-Za-z0-9+]+://[^/@:]*):(.*)@")


@contextlib.contextmanager
def _password_aside(overrides: list[str]) -> Iterator[None]:
    """Take the database's password out of the overrides, which Hydra shows in tracebacks and writes for sweeps."""
    before = os.environ.get(PASSWORD_VARIABLE)
    for index, word in enumerate(overrides):
        match = _PASSWORD.match(word)
        if match:
            overrides[index] = word.replace(match[0], match[1] + "@", 1)
            os.environ[PASSWORD_VARIABLE] = unquote(match[2])
    try:
        yield
    finally:
        os.environ.pop(PASSWORD_VARIABLE, None)
        if before is not None:
            os.environ[PASSWORD_VARIABLE] = before


def _explain(command: str, error: Exception, overrides: list[str]) -> str:
    """What was wrong with the settings, and the nearest right name."""
    for override in overrides:
        name, _, value = re.sub(r"^[+~]+", "", override).partition("=")
        if re.match("hydra[./]", name):
            said = _explain_hydra(name, value, error, overrides)
            if said:
                return said
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, choice = str(error.missing_cfg_file).partition("/")
        known = [one for one in error.options or () if not is_named(one)] or (choices(group) if group in ABOUT else ())
        own = f"; your own is {ABOUT[group][2]}" if group in ABOUT and ABOUT[group][2] else ""
        if known:
            return f"no {group} '{choice}'{did_you_mean(choice, known)}{own}"
    if isinstance(error, OverrideParseException):
        return f"'{error.override}' cannot be read; a value with special characters needs quotes: NAME='\"VALUE\"'"
    if isinstance(error.__context__, OmegaConfBaseException) and "while composing config" in str(error):
        place = str(error).partition(":")[0]
        return f"{place}: {_explain_file(command, error.__context__)}"
    return _explain_value(error, overrides)


def _explain_yaml(error: yaml.YAMLError) -> str:
    """Where a config file is no YAML."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is not None:
        return f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}: not YAML: {getattr(error, 'problem', '')}"
    name = getattr(error, "name", None)
    return f"{name or 'a config file'}: not YAML: {getattr(error, 'reason', None) or described(error)}"


def _unreadable(folders: Sequence[Path]) -> Path | None:
    """A config file that is no text; Hydra's error does not name it."""
    for path in sorted(path for folder in folders for path in folder.rglob("*.yaml")):
        try:
            path.read_text("utf-8")
        except UnicodeDecodeError:
            return path
        except OSError:
            continue  # Hydra did not read it either
    return None


def _explain_file(command: str, error: OmegaConfBaseException) -> str:
    """What was wrong with a config file."""
    name = str(error.full_key)
    if name.partition(".")[0] == "experiment":
        return "an experiment begins with the line '# @package _global_', and nothing in front of it"
    if isinstance(error, ConfigKeyError) and name:
        return str(no_setting(name, "...", [one for one, _, _ in settings(COMMANDS[command])]))
    return _explain_value(error, [])


def _explain_value(error: Exception, overrides: list[str]) -> str:
    """What was wrong with a setting's value."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else error
    text = str(cause).splitlines()[0]
    key = getattr(cause, "full_key", None)
    name = str(key) if key else _offender(text, overrides)
    if name and name not in text:
        return f"{name}: {text}"
    return text


def _explain_hydra(name: str, value: str, error: Exception, overrides: list[str]) -> str:
    """What was wrong with one of Hydra's own settings, as far as we know; else nothing."""
    if name.startswith("hydra/") and isinstance(error, MissingConfigException):
        with contextlib.suppress(OSError):
            offered = sorted(entry.removesuffix(".yaml") for entry in ConfigStore.instance().list(name))
            hint = "; joblib and submitit come with: pip install 'l2l-nas[launchers]'" if "launcher" in name else ""
            return "" if value in offered else f"no {name} '{value}'{did_you_mean(value, offered)}{hint}"
    if name.startswith("hydra.sweeper."):
        sampled = {known for known, _, _ in settings(SweeperConf, "hydra.sweeper.")}
        if not any(word.startswith("hydra/sweeper=") for word in overrides):
            if name in sampled - {"hydra.sweeper.params"}:
                return f"{name} is a setting of sampled sweeps: add hydra/sweeper=l2l"
        elif "hydra/sweeper=l2l" in overrides and re.sub(r"(\.params)\..*", r"\1", name) not in sampled:
            return f"no setting '{name}'{nearest(name, sorted(sampled))}"
    return ""


def _offender(text: str, overrides: list[str]) -> str:
    """The setting whose value an error quotes."""
    for override in overrides:
        name, _, value = override.partition("=")
        if value and value in text:
            return name.lstrip("+~")
    return ""
