"""`train`: one architecture by itself, from scratch or from a run's weights, with an exact resume."""

from l2l_nas.runs.train import TrainRun

prepared = TrainRun
