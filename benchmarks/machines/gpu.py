"""Everything that the docs call not measured, in one run of ten minutes on a machine with a GPU.

    python -m benchmarks gpu [--out FOLDER] [--device cuda] [--hardware h100|FILE.json|measure] [--quick]

Before a section runs, the simulator predicts it: with the profile that bears the device's name, or the one that
`--hardware` names, and, once the first section has measured them, with this machine's own rates. FOLDER gets gpu.json
with all figures, gpu.html with predicted beside measured, hardware.json with the measured rates, which `plan hardware=`
takes, and trace.json. Each section is a process of its own with a time limit: one that fails or hangs costs no other.
`--quick --device cpu` goes through all sections with tiny layers, to try the script itself.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import ROOT

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA starts: sums in one order

from benchmarks.machines.forecast import Sizes, forecast, profile_of
from benchmarks.machines.measured import render_measured
from benchmarks.machines.sections import SECTIONS
from benchmarks.timing import machine
from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.profiles import find_hardware
from l2l_nas.files import read_json, write_atomically, write_json
from l2l_nas.relay.device import open_device

_ALL_S = 590  # of all sections and predictions
_QUICK_ALL_S = 1800


def run_section(name: str, sizes: Sizes, out: Path) -> None:
    """Measure one section, and print a figure a line."""
    for found in SECTIONS[name].run(sizes, out):
        print("FIGURE " + json.dumps(asdict(found)), flush=True)


def in_process(name: str, options: argparse.Namespace, left_s: float) -> dict[str, Any]:
    """A section by a process of its own; what it has when its time is over, or when it fails.

    Args:
        left_s: for this and all that follow.
    """
    section = SECTIONS[name]
    limit_s = left_s if options.quick else min(section.limit_s, left_s)
    about = {"about": section.about, "unit": section.unit}
    if limit_s < 1:
        return {**about, "seconds": 0.0, "failed": "left out: the time was over", "rows": []}
    command = [sys.executable, "-m", "benchmarks", "gpu", "--section", name]
    command += ["--out", str(options.out.resolve()), "--device", options.device]
    begun = time.monotonic()
    failed, output = "", ""
    process = subprocess.Popen(
        [*command, *(["--quick"] if options.quick else [])],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=limit_s)
        if process.returncode:
            failed = (errors.strip().splitlines() or [f"exit code {process.returncode}"])[-1]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # compilers that it started, too
        output, _ = process.communicate()
        failed = f"stopped after {limit_s:.0f} s; what it had by then stands here"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    rows = [json.loads(line.removeprefix("FIGURE ")) for line in output.splitlines() if line.startswith("FIGURE ")]
    seconds = round(time.monotonic() - begun, 1)
    return {**about, "seconds": seconds, "failed": failed, "rows": rows}


def prediction(sizes: Sizes, hardware: Hardware, what: str) -> dict[str, Any]:
    """What the simulator says, and with which rates."""
    return {
        "what": what,
        "made": time.strftime("%Y-%m-%d %H:%M:%S"),
        "hardware": hardware.to_json(),
        "figures": forecast(sizes, hardware),
    }


def write(out: Path, result: Mapping[str, Any]) -> None:
    """All that is known by now."""
    write_json(out / "gpu.json", dict(result))
    write_atomically(out / "gpu.html", render_measured(result))


def measure_all(options: argparse.Namespace) -> dict[str, Any]:
    """Predict, measure, write; after each section again."""
    begun = time.monotonic()
    end = begun + (_QUICK_ALL_S if options.quick else _ALL_S)
    sizes = Sizes.of(options.device, is_quick=options.quick)
    about = machine(open_device(options.device).torch_device)
    predictions: dict[str, Any] = {}
    result: dict[str, Any] = {"benchmark": "gpu", "machine": about, "predictions": predictions, "sections": {}}
    profile = profile_of(str(about["gpu"])) if not options.hardware else None
    if options.hardware not in ("", "measure"):
        profile = find_hardware(options.hardware)
    if profile is not None:
        predictions[profile.name] = prediction(sizes, profile, f"the profile {profile.name}: {profile.sources}")
    for name in SECTIONS:
        result["sections"][name] = in_process(name, options, end - time.monotonic())
        if name == "rates" and not result["sections"][name]["failed"]:
            measured = Hardware(**read_json(options.out / "hardware.json"))
            what = "rates measured in the first section, from which its own figures come"
            found = prediction(sizes, measured, what)
            del found["figures"]["rates"]  # they are the measured ones
            predictions["measured rates"] = found
        result |= {"seconds": round(time.monotonic() - begun, 1), "made": time.strftime("%Y-%m-%d %H:%M:%S")}
        write(options.out, result)
        section = result["sections"][name]
        print(f"{name}: {len(section['rows'])} figures in {section['seconds']:.0f} s {section['failed']}", flush=True)
    return result


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("gpu"), help="folder for all files")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--hardware", default="", help="what the simulator predicts with; empty: by the device's name")
    parser.add_argument("--quick", action="store_true", help="tiny layers")
    parser.add_argument("--section", choices=list(SECTIONS), help="only this one, in this process")


def main(options: argparse.Namespace) -> int:
    """Measure everything; 1 if a section did not end."""
    options.out.mkdir(parents=True, exist_ok=True)
    if options.section:
        run_section(options.section, Sizes.of(options.device, is_quick=options.quick), options.out)
        return 0
    result = measure_all(options)
    print(f"{options.out / 'gpu.html'} and gpu.json, in {result['seconds']:.0f} s")
    return int(any(section["failed"] for section in result["sections"].values()))
