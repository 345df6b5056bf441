"""Every kind of layer that version 0.1.0 trained wrongly, or refused without need, by name: it works, or it is refused.

Each is proved where it belongs; this table says where, and fails where that proof is gone.
"""

from __future__ import annotations

import inspect

import pytest

from tests.equivalence import test_layers_equal_plain as layers
from tests.equivalence import test_learned_objectives as objectives
from tests.equivalence import test_several_targets as targets
from tests.layers import test_by_name as by_name
from tests.relay import test_visits as visits
from tests.space import test_probe as probe
from tests.space import test_shapes as shapes
from tests.space.convert import test_recipes as recipes
from tests.training import test_export as export


def equals_plain(*kinds):
    return "works", layers.test_it_trains_as_plain_pytorch_does, kinds


def passes(*kinds):
    return "works", probe.test_what_trains_right_passes, kinds


def runs_on_the_host(*kinds):
    return "works", probe.test_what_meta_cannot_decide_runs_on_the_host, kinds


def is_built_on_the_host(*kinds):
    return "works", probe.test_what_cannot_be_built_on_meta_is_built_on_the_host, kinds


def is_refused(*kinds):
    return "refused", probe.test_what_would_train_wrongly_is_refused_with_its_place_and_what_to_write, kinds


def works(test, *kinds):
    return "works", test, kinds


def refused(test, *kinds):
    return "refused", test, kinds


SILENTLY_WRONG = {
    "a factory that returns a module that exists": [
        equals_plain("existing"),
        works(layers.test_a_module_that_exists_gives_its_weights_and_is_never_changed),
        works(probe.test_a_shared_part_with_weights_must_be_tied),
    ],
    "complex tensors between layers": [equals_plain("complex")],
    "hooks of parameters": [is_refused("hook", "accumulation hook")],
    "weights changed in the forward: max_norm, clamp, a frozen parameter that runs along": [
        is_refused("max_norm", "clamp", "frozen parameter")
    ],
    "state made in the forward: a buffer set later, an attribute, a list, a counter": [
        is_refused("buffer made", "attribute made", "list grows", "counter", "counter of a backward", "evaluation")
    ],
    "Python's random, numpy's, a generator of the module's own": [
        is_refused("random", "numpy", "own generator", "own numpy", "own python"),
        refused(visits.test_what_goes_wrong_only_on_some_inputs_is_refused_by_name, visits.draws),
    ],
    "a tensor in a list, a dict or a closure": [is_refused("list", "dict", "closure", "list of layers")],
    "buffers changed in the backward, by a hook": [is_refused("backward hook")],
    "BatchNorm inside checkpoint": [is_refused("checkpoint"), passes("checkpoint without state")],
    "an objective with a parameter of its own": [
        works(objectives.test_an_objective_with_parameters_trains_as_a_plain_loop_does),
        refused(objectives.test_an_objective_that_learns_outside_of_its_pool_is_refused),
        refused(visits.test_an_objective_that_would_learn_is_refused),
    ],
    "strided boundaries: permuted, transposed, channels last, irfft": [
        equals_plain("permuted", "transposed", "channels last", "irfft")
    ],
    "a view after a transposed layer trains, predicts and stays on the device": [equals_plain("transposed")],
    "an LSTM with batch_first before a BatchNorm": [equals_plain("lstm")],
    "plain PyTorch means the fused optimizer": [
        works(layers.test_the_docs_say_of_which_kernel_training_is_bit_for_bit)
    ],
}
REFUSED_OR_UNCLEAR = {
    "BatchNorm(momentum=None)": [runs_on_the_host("momentum"), equals_plain("momentum")],
    "orthogonal": [is_built_on_the_host("orthogonal"), equals_plain("orthogonal")],
    "drop rates of linspace().item()": [is_built_on_the_host("linspace")],
    "routing by nonzero": [runs_on_the_host("nonzero"), equals_plain("routed")],
    "a branch on values": [runs_on_the_host("branch")],
    "buffers of numpy": [is_built_on_the_host("numpy")],
    "a parameter of torch.Tensor(n, n)": [is_built_on_the_host("old constructor")],
    "deepcopy of a pretrained layer": [equals_plain("deepcopy")],
    "one buffer under two names": [equals_plain("two names"), is_refused("shared memory")],
    "one rotary module that all layers use": [equals_plain("shared table")],
    "lazy layers": [is_refused("lazy")],
    "the old weight_norm": [is_refused("old weight_norm"), passes("weight norm")],
    "more outputs in training than in evaluation": [is_refused("more in training")],
    "weights of targets that sum to less than 1": [works(visits.test_weights_of_targets_may_sum_to_less_than_one)],
    "BatchNorm with a micro-batch of one sample": [refused(visits.test_a_batch_norm_that_meets_one_sample_is_named)],
    "what torch.export cannot trace": [
        refused(export.test_what_cannot_be_traced_is_refused_in_one_line_and_its_weights_are_written),
        refused(export.test_the_reasons_that_torch_lists_below_its_first_line_are_told),
    ],
    "outputs in dicts and dataclasses": [
        equals_plain("dict", "dataclass"),
        works(by_name.test_named_inputs_and_outputs_train_as_plain_pytorch_does, "dict, one of it", "dataclass"),
        refused(shapes.test_an_output_that_is_no_tensor_is_refused),
    ],
    "keyword arguments": [
        works(by_name.test_named_inputs_and_outputs_train_as_plain_pytorch_does, "tensor"),
        works(recipes.test_a_recipe_has_at_most_ten_lines_and_its_pool_trains, "GPT-2", "T5"),
    ],
    "several targets": [
        works(targets.test_two_targets_train_as_plain_pytorch_does),
        refused(targets.test_targets_of_other_lengths_are_refused),
    ],
}


def values_of(test):
    """All values of the parameters of a test."""
    marks = [mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
    for mark in marks:
        for value in mark.args[1]:
            yield from value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("name", [*SILENTLY_WRONG, *REFUSED_OR_UNCLEAR])
def test_it_works_or_is_refused_and_a_test_shows_it(name):
    proofs = (SILENTLY_WRONG | REFUSED_OR_UNCLEAR)[name]
    assert proofs
    for outcome, test, kinds in proofs:
        assert test.__name__.startswith("test_")
        assert not any(mark.name in ("skip", "skipif", "xfail") for mark in getattr(test, "pytestmark", []))
        known = list(values_of(test))
        assert [kind for kind in kinds if kind not in known] == []
        # one that is refused is seen to raise, or to be told in the place of what was asked for
        assert (
            "pytest.raises" in inspect.getsource(test) or ".refused" in inspect.getsource(test)
        ) or outcome == "works"


def test_none_is_proved_by_another_entry_s_case():
    """A case stands for one entry: two entries with the same proof would be one."""
    seen = {}
    for name, proofs in (SILENTLY_WRONG | REFUSED_OR_UNCLEAR).items():
        key = tuple((test.__name__, kinds) for _, test, kinds in proofs)
        assert seen.setdefault(key, name) == name
