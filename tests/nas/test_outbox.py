from __future__ import annotations

import json

from l2l_nas.nas.distributed.outbox import Outbox


def test_what_waits_is_on_disk_until_it_is_dropped(tmp_path):
    path = tmp_path / "pending.jsonl"
    pending = Outbox(path)
    assert not path.exists()
    entries = [{"lease": "a", "values": [0.25]}, {"lease": "b", "values": None}]
    for entry in entries:
        pending.add(entry)
    assert Outbox(path).entries == entries
    pending.drop(entries[0])
    assert path.exists()
    pending.drop(entries[1])
    assert not path.exists()


def test_a_line_that_a_kill_cut_off_hurts_neither_those_before_nor_the_next(tmp_path):
    path = tmp_path / "pending.jsonl"
    Outbox(path).add({"lease": "a"})
    path.write_text(path.read_text() + '{"lease": "b", "val')
    pending = Outbox(path)
    assert pending.entries == [{"lease": "a"}]
    pending.add({"lease": "c"})
    assert Outbox(path).entries == [{"lease": "a"}, {"lease": "c"}]


def test_what_is_no_result_is_not_read(tmp_path):
    path = tmp_path / "pending.jsonl"
    path.write_text("\n".join(map(json.dumps, [3, [], {"lease": 4}, {"lease": "x"}])) + "\n")
    assert Outbox(path).entries == [{"lease": "x"}]
