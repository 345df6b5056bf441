"""Figures of published language models."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.models.pruning_table import differences, perplexity, table
from benchmarks.pages.writing import bullets, in_errors, markdown, ratio, raw


def published() -> str:
    """A published model's figures, ours and transformers'."""
    found = raw("published")
    lines = [
        [words, f"{one['token_perplexity']:.5f}", f"{100 * one['accuracy']:.1f} %", f"{one['target_perplexity']:.4f}"]
        for words, one in (("this library", found["l2l_nas"]), ("transformers", found["transformers"]))
    ]
    return markdown(["", "token perplexity", "accuracy of last words", "perplexity of last words"], lines)


def speed() -> str:
    """Evaluation over a plain loop."""
    found = raw("own_lengths")
    two, one = found["two_threads"]["own_lengths"], found["one_thread_perplexity_behind_the_rule"]["own_lengths"]
    lines = [
        [
            f"last words, {two['items']} passages",
            "2",
            ratio(two["last_words"]["ratio"]["cpu"]),
            ratio(two["last_words"]["ratio"]["wall"]),
        ],
        [
            "token perplexity, before its rule for lengths",
            "2",
            ratio(two["token_perplexity"]["ratio"]["cpu"]),
            ratio(two["token_perplexity"]["ratio"]["wall"]),
        ],
        [
            "token perplexity, with it, busy machine",
            "1",
            ratio(one["token_perplexity"]["ratio"]["cpu"]),
            ratio(one["token_perplexity"]["ratio"]["wall"]),
        ],
    ]
    return markdown(["over a plain transformers loop, 3 rounds", "threads", "processor", "wall"], lines)


def smollm() -> str:
    """SmolLM2 made smaller."""
    return table(raw("pruning_512"))


def words() -> str:
    """The two closest rows, on all passages that are left."""
    rows = raw("pruning_512_words")["rows"]
    lines = []
    for share in (15, 25):
        search, flap = rows[f"search_{share}"], rows[f"flap_{share}"]
        hits = [100 * statistics.fmean(map(int, one["hits"])) for one in (search, flap)]
        ahead = differences(search, flap)[1:]
        lines.append(
            [
                f"{share} %",
                f"{len(search['hits']):,}",
                *(f"{one:.1f} %" for one in hits),
                f"{100 * ahead[0][0]:.1f} ± {100 * ahead[0][1]:.1f} points",
                *(in_errors(*one) for one in ahead),
            ]
        )
    head = ["removed", "passages", "search", "FLAP", "difference", "in errors", "of their log likelihood"]
    return markdown(head, lines)


def gemma() -> str:
    """Gemma 3 270M made smaller, with the rate that was chosen for it."""
    return table(raw("pruning_512_gemma"))


def gemma_rate() -> str:
    """The same with SmolLM2's rate."""
    return table(raw("pruning_512_gemma_3e-4"))


def gemma_untuned() -> str:
    """The same without fine-tuning."""
    return table(raw("pruning_512_gemma_untuned"))


def pruning() -> str:
    """What the tables come to, counted."""
    lines = []
    for name, words in {
        "pruning_512": "SmolLM2-135M, 15, 25 and 40 %, rate 3e-4",
        "pruning_512_gemma": "Gemma 3 270M, 25 %, rate 3e-5",
        "pruning_512_gemma_3e-4": "Gemma 3 270M, 25 %, rate 3e-4",
        "pruning_512_gemma_untuned": "Gemma 3 270M, 25 %, no fine-tuning",
    }.items():
        lines.append(f"{words}: {'; '.join(_counted(raw(name)['rows']))}.")
    return bullets(lines)


def _counts(rows: dict[str, Any]) -> list[tuple[str, int, int, int]]:
    """Of each figure its name, how many rows the search is ahead of, how many ahead of it, and all."""
    others = [name for name in rows if not name.startswith(("search", "original"))]
    found = []
    for index, what in enumerate(("perplexity", "last words", "their log likelihood")):
        told = [in_errors(*differences(rows[f"search_{o.rpartition('_')[2]}"], rows[o])[index]) for o in others]
        found.append((what, sum(o.startswith("+") for o in told), sum(o.startswith("-") for o in told), len(told)))
    return found


def _counted(rows: dict[str, Any]) -> list[str]:
    return [
        f"in {what} ahead of {ahead} of {count}, behind {behind}, not resolved {count - ahead - behind}"
        for what, ahead, behind, count in _counts(rows)
    ]


def headline(name: str) -> str:
    """The same of a table in a phrase."""
    (_, ahead, behind, count), words = _counts(raw(name)["rows"])[0], _counts(raw(name)["rows"])[1]
    return (
        f"ahead of {ahead} of {count} rows in perplexity and {words[1]} in last words, behind {behind} and {words[2]}"
    )


def search_time() -> str:
    """How much longer a search of one size takes than other ways to that size."""
    of = _seconds("pruning_512_gemma", "_25")
    beside = {**_seconds("pruning_512", "_15"), **_seconds("pruning_512_hour", "_15")}
    ratios = [
        rows[search] / seconds
        for rows, search in ((of, "search_25"), (beside, "search_15"))
        for name, seconds in rows.items()
        if name != search
    ]
    return f"{min(ratios):.0f} to {max(ratios):.0f}"


def _seconds(name: str, share: str) -> dict[str, float]:
    """Processor time of all rows of a share."""
    stages = [f"{one}_processor_seconds" for one in ("search", "prune", "tune")]
    rows = raw(name)["rows"]
    return {arm: sum(row.get(one, 0) for one in stages) for arm, row in rows.items() if arm.endswith(share)}


def hour() -> str:
    """One size on two cores, beside the three of the table, and how much longer the search takes than other ways."""
    row = raw("pruning_512_hour")["rows"]["search_15"]
    hits = [float(one) for one in row["hits"]]
    minutes = sum(row[f"{one}_processor_seconds"] for one in ("search", "tune")) / 60
    return bullets(
        [
            f"One size alone (15 %) on two threads: perplexity {perplexity(row['losses']):.2f}, last words "
            f"{100 * statistics.fmean(hits):.1f} %, {minutes:.0f} minutes of processor time, 42 by the clock.",
            f"A search of one size took {search_time()} times the processor time of another way.",
        ]
    )


def smaller_speed() -> str:
    """What a smaller network keeps of what its bytes promise."""
    found = raw("smaller_speed")
    names = [name for name in found["l2l_nas"]["token"] if "again" not in name]
    lines = [
        [name, f"{found['l2l_nas']['token'][name]['promised']:.2f}"]
        + [f"{found[side][what][name]['kept']['wall']:.2f}" for what in ("prompt", "token") for side in SIDES]
        for name in names
    ]
    head = ["", "time promised", *(f"{what}, kept: {side}" for what in ("prompt", "token") for side in SIDES)]
    return markdown(head, lines)


SIDES = ("transformers", "l2l_nas")
BLOCKS = {
    "published": published,
    "published_speed": speed,
    "pruning_smollm": smollm,
    "pruning_words": words,
    "pruning_gemma": gemma,
    "pruning_gemma_rate": gemma_rate,
    "pruning_gemma_untuned": gemma_untuned,
    "pruning_counted": pruning,
    "pruning_time": hour,
    "smaller_speed": smaller_speed,
}
