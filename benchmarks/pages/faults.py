"""Figures of kills, failing ranks, clusters, damaged files."""

from __future__ import annotations

from typing import Any

from benchmarks.pages.writing import bullets, markdown, raw

_GONE = ("shared study", "sampled")
_SHARED = "search with two workers"  # that trained the same weights


def _kills() -> list[dict[str, Any]]:
    return [raw("kills"), *raw("kills_2026_11_26"), *raw("kills_workers"), raw("kills_smaller")]


def num_kills() -> int:
    return sum(run["kills"] for run in _kills())


def kills() -> str:
    lines = []
    for run in _kills():
        failed = [f"{one['scenario']}: {one['wrong'].strip().removesuffix(':')}" for one in run["failures"]]
        counts = (run["kills"], run["lives"], run["seed"], len(run["failures"]))
        lines.append([*map(str, counts), "; ".join(dict.fromkeys(failed))])
    return markdown(["kills", "runs", "seed", "runs that went wrong", "how"], lines)


def clusters() -> str:
    """Kills on Ray and Dask, in the order they were run."""
    lines = []
    for run in raw("clusters"):
        killed = ", ".join(f"{count} {what}s" for what, count in run["kills"].items())
        lines.append([run["engine"], f"{run['searches']}", killed, "; ".join(run["failures"]) or "none"])
    return markdown(["engine", "searches", "killed", "searches that went wrong"], lines)


_KINDS = {
    "kill": "`kill -9`",
    "stop": "`SIGSTOP`",
    "raise": "a layer raises; an exception in a save",
    "nan": "a loss is NaN",
    "nan_gradient": "a gradient is NaN, the loss is finite",
    "memory": "MemoryError, in a layer or in a save",
}


def ranks() -> str:
    found = raw("ranks")
    lines = []
    for kind, words in _KINDS.items():
        rows: list[dict[str, Any]] = [
            found[name]["table"][kind] for name in ("failures", "failures_seed_0", "failures_seed_2")
        ]
        seconds = [one["others_ended_s"] for one in rows]
        ended = f"{min(one[0] for one in seconds):.2f} to {max(one[2] for one in seconds):.2f}"
        counts = [sum(one[name] for one in rows) for name in ("failures", "in_saves", "resumed", "wrong")]
        lines.append([words, f"{counts[0]} ({counts[1]})", ended, *(f"{one}" for one in counts[2:])])
    head = ["what happens to a rank", "failures (in a save)", "seconds until the other has ended", "resumed", "wrong"]
    return markdown(head, lines)


def mutations() -> str:
    first, later, foreign = raw("mutations")["rounds"], raw("mutations_2026_11_26"), raw("foreign")
    files = [sum(one[name] for one in first) for name in ("files", "inputs")]
    failed = sum(len(one["failures"]) for one in first)
    return bullets(
        [
            f"{files[0]:,} damaged files and {files[1]:,} hostile inputs: {failed} tracebacks or more lines, mended.",
            f"{later['files']:,} and {later['inputs']:,} more, of other seeds: {later['tracebacks']} tracebacks, "
            f"{later['hangs']} hangs, {later['other_weights']} runs that went on with other weights.",
            f"{foreign['lines']} hostile lines planted in settings of a run's folder: {len(foreign['failures'])} "
            "executed, connected or written outside.",
        ]
    )


def mutants() -> str:
    """Small wrong changes of the package, and whether a quick test fails."""
    changes = raw("mutants")["changes"]
    later = sum("survived_first" in one for one in changes)
    caught, equivalent = (sum(name in one for one in changes) for name in ("caught", "equivalent"))
    gone = sum(one.get("left") == "gone" for one in changes)
    return bullets(
        [
            f"{len(changes)} changes, one a line, spread over the rooms by their lines: {caught - later} caught by the "
            f"nearest tests, {later} by others or by tests that were written for them, {equivalent} change nothing "
            f"that is promised, {gone} were in code that is gone, {len(changes) - caught - equivalent - gone} is left: "
            "a tuned default.",
        ]
    )


BLOCKS = {
    "kills": kills, "clusters": clusters, "rank_faults": ranks, "mutations": mutations, "mutants": mutants,
}  # fmt: skip
