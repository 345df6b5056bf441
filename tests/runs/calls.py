"""Settings of calls of `l2l_nas.search`, and what their studies hold."""

from __future__ import annotations

from tests.studies import saved_study

SAID = {
    "objectives": ["accuracy", "parameters"], "trial_weights": "shared", "warmup_steps": 30, "trials": 12,
    "steps_per_trial": 2, "finalists": 1, "finalist_steps": 5, "export": False,
}  # fmt: skip
# what one run differs in from the next
_TIMES = ("seconds", "ended", "datetime_start", "datetime_complete")


def trials_of(folder):
    study = saved_study(folder)
    return [
        (t.number, t.state, t.params, t.values, {k: v for k, v in t.user_attrs.items() if k not in _TIMES})
        for t in study.trials
    ]
