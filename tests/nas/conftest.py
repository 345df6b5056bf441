from __future__ import annotations

import pytest

from l2l_nas.training.fit import Trainer


@pytest.fixture
def steps(monkeypatch):
    """Every training step: its number, path, learning rate, and whether it was on shared weights."""
    seen = []
    real = Trainer.fit

    def fit(self, path_at, *, start, steps, schedule, offset=0, after_step=lambda step, loss: None):
        def noted(step, loss):
            seen.append((step, path_at(step), schedule.at(step - offset), self.executor.server))
            after_step(step, loss)

        real(self, path_at, start=start, steps=steps, schedule=schedule, offset=offset, after_step=noted)

    monkeypatch.setattr(Trainer, "fit", fit)
    return seen
