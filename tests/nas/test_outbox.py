from __future__ import annotations

import json

from l2l_nas.nas.distributed.outbox import Pending


def test_what_waits_is_on_disk_until_it_is_dropped(tmp_path):
    path = tmp_path / "pending.jsonl"
    pending = Pending(path)
    assert not path.exists()
    entries = [{"lease": "a", "values": [0.25]}, {"lease": "b", "values": None}]
    for entry in entries:
        pending.add(entry)
    assert Pending(path).entries == entries
    pending.drop(entries[0])
    assert path.exists()
    pending.drop(entries[1])
    assert not path.exists()


def test_a_line_that_a_kill_cut_off_hurts_neither_those_before_nor_the_next(tmp_path):
    path = tmp_path / "pending.jsonl"
    Pending(path).add({"lease": "a"})
    path.write_text(path.read_text() + '{"lease": "b", "val')
    pending = Pending(path)
    assert pending.entries == [{"lease": "a"}]
    pending.add({"lease": "c"})
    assert Pending(path).entries == [{"lease": "a"}, {"lease": "c"}]


def test_what_is_no_result_is_not_read(tmp_path):
    path = tmp_path / "pending.jsonl"
    path.write_text("\n".join(map(json.dumps, [3, [], {"lease": 4}, {"lease": "x"}])) + "\n")
    assert Pending(path).entries == [{"lease": "x"}]
