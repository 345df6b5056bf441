"""Named benches: the relay beside its peers, interleaved in one process, with a control and an interval."""
