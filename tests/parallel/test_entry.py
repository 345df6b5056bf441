"""The end of a rank that did not join."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from l2l_nas.errors import RankError, SettingError
from l2l_nas.parallel import entry


@pytest.mark.parametrize(("error", "lasts"), [(SettingError("no"), True), (RankError("it is gone", rank=0), False)])
def test_a_process_that_did_not_join_lasts_while_rank_0_may_hold_what_the_others_read(error, lasts, monkeypatch):
    waits = []
    monkeypatch.setattr(entry, "time", SimpleNamespace(sleep=waits.append))
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    assert entry._end_alone(error) == entry.BAD_INPUT
    assert bool(waits) == lasts
