"""Conformance suites: what every extension must do, whoever wrote it. Our own implementations run them, too.

Each function takes something that builds yours anew, as most checks need more than one. It raises an
AssertionError that says what is wrong. It needs no data and takes seconds.

    def test_my_sampler():
        l2l_nas.testing.check_sampler(lambda seed: MySampler(seed))
"""

from l2l_nas.testing.engine import check_extend as check_extend
from l2l_nas.testing.engine import check_optimizer as check_optimizer
from l2l_nas.testing.engine import check_schedule as check_schedule
from l2l_nas.testing.engine import check_space as check_space
from l2l_nas.testing.engine import check_storage as check_storage
from l2l_nas.testing.searches import check_callback as check_callback
from l2l_nas.testing.searches import check_cost as check_cost
from l2l_nas.testing.searches import check_early_stop as check_early_stop
from l2l_nas.testing.searches import check_sampler as check_sampler
from l2l_nas.testing.searches import check_strategy as check_strategy
