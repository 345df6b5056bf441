"""What earlier tasks predict of architectures, as a prior mean of the model of this one.

[Note: earlier tasks] Of each earlier task there is a Gaussian process of its own, over the positions that it has in
common with this space. A longer training changes scores by a second process of the same covariance, as it does in a
race (see [Note: a race] in `hamming_gp.py`); here in the measure of the logarithm of its length, from a tenth of a
whole training on. What all networks gain by it is a random walk in the same measure, so it does not matter that those
trained longest are the best. So each task predicts two things of an architecture: what a short training shows, and
what the whole one shows.

This task's scores are taken for a constant, the sum of these predictions by a weight for each earlier task, a Gaussian
process and noise. Weights are where the likelihood is highest, each 0 or more, together with a belief about as strong
as a few trials: tasks agree as much as tasks usually do. So an earlier task that is another matter costs little.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from scipy.optimize import nnls

from l2l_nas.nas.earlier_task import EarlierTask
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.samplers.base import Floats, Genotype
from l2l_nas.nas.samplers.gaussian_process import FURTHER, Fit, Model, ModelData, OneHot, Rows, raised

# correlation of tasks that is believed in before any trial, and as strongly as by so many trials
_AGREEMENT, _BELIEF = 0.7, 3.0
# variance of what all networks gain by a training ten times as long, by that of scores
_WALK = 25.0
# variance of what is a network's own, in all its trainings, and tells nothing of others; by that of true values
_OWN = 0.1
# networks without which a task is left out
_FEWEST = 3
# genotypes whose predictions are held: trials and candidates of a proposal ask for them several times
_HELD = 2000


class EarlierData(ModelData):
    """Scores of an earlier task, each after a share of a whole training.

    Args:
        lengths: of the trainings, from 0, a tenth of a whole one or less, to 1; see [Note: earlier tasks].
    """

    def __init__(self, genotypes: Sequence[Genotype], values: Floats, lengths: Floats, encoding: OneHot) -> None:
        # what is common to a length is not known, so each length may have its own middle
        centered = np.empty(len(values))
        self._of = np.round(lengths, 1)
        for length in np.unique(self._of):
            centered[self._of == length] = raised(values[self._of == length])
            centered[self._of == length] -= centered[self._of == length].mean()
        super().__init__(genotypes, centered, encoding)
        both = np.minimum.outer(lengths, lengths)
        is_same = np.array([[one == other for other in genotypes] for one in genotypes])
        self.common = _WALK * both + _OWN * is_same
        self._longer = 1 + FURTHER * both

    def near(self, decays: Floats) -> Floats:
        return super().near(decays) * self._longer

    def slope(self, model: Model) -> float:
        """By how much scores rise with what those of other networks predict of them, less what chance would have.

        The latter as James and Stein shrink: where nothing is predicted, n times the share of the variance that is
        predicted is 1 in the mean.
        """
        by_network: dict[Genotype, list[int]] = {}
        for index, genotype in enumerate(self.genotypes):
            by_network.setdefault(genotype, []).append(index)
        predicted, values = model.left_out([np.array(one) for one in by_network.values()]), self.values.copy()
        for length in np.unique(self._of):
            predicted[self._of == length] -= predicted[self._of == length].mean()
            values[self._of == length] -= values[self._of == length].mean()
        both, squares = float(predicted @ values), float(predicted @ predicted)
        if both <= 0:
            return 0.0
        share = both * both / squares / float(values @ values)
        return min(1.0, both / squares) * max(0.0, 1 - 1 / (len(by_network) * share))


class EarlierModel:
    """The model of one earlier task: what it predicts, in deviations of its scores after a short training.

    Args:
        genotypes: of the positions of these names alone.
        shares: of a whole training, after which values were measured.
        encoding: of the genotypes that are predicted.
    """

    def __init__(
        self, genotypes: Sequence[Genotype], values: Floats, shares: Floats, *, names: Sequence[str], encoding: OneHot
    ) -> None:
        lengths: Floats = np.clip(1 + np.log10(shares), 0, 1)
        data = EarlierData(genotypes, values, lengths, OneHot({name: encoding.space[name] for name in names}))
        model = Fit().model(data, len(genotypes))
        # other positions do not matter: their decay is 0
        is_common = np.array([name in names for name in encoding.space])
        decays = np.zeros(len(is_common))
        decays[is_common] = model.decays
        rows = np.zeros((len(genotypes), len(encoding.values)))
        rows[:, is_common[encoding.positions]] = data.rows
        # single precision, as half of what a proposal pays for earlier tasks is this product and its exponentials
        self._near = (rows * decays[encoding.positions]).T.astype(np.float32)
        self._farthest = np.float32(decays.sum())
        unit = np.sqrt(1 + FURTHER * lengths.mean()) * data.slope(model)
        self._weights: Floats = unit * np.stack([model.weights, model.weights * (1 + FURTHER * lengths)], axis=1)

    def predict(self, rows: Rows) -> Floats:
        """Of shape (rows, 2): after a short training, and after a whole one; the mean of all may be anything."""
        found: Floats = np.exp(rows @ self._near - self._farthest) @ self._weights
        return found


class Prior:
    """The prior mean of one number, as a sum of what models of earlier tasks predict.

    Args:
        models: of earlier tasks; at least one.
        is_raced: whether trials are short trainings, and what counts comes later.

    Attributes:
        expected: the weights that are believed in before any trial.
    """

    def __init__(self, models: Sequence[EarlierModel], encoding: OneHot, *, is_raced: bool) -> None:
        self._models, self._encoding, self._is_raced = models, encoding, is_raced
        self._places: dict[Genotype, int] = {}
        self._known: Floats = np.zeros((0, len(models), 2))
        self.expected = np.full(len(models), _AGREEMENT / (1 + (len(models) - 1) * _AGREEMENT))

    def anew(self) -> Prior:
        """The same without the predictions it holds, which are rounded by what they were asked for together with."""
        return Prior(self._models, self._encoding, is_raced=self._is_raced)

    def columns(self, genotypes: Sequence[Genotype], rows: Rows | None = None) -> tuple[Floats, Floats]:
        """Of shape (genotypes, models) each: what is predicted of trials, and of what counts in the end.

        Args:
            rows: theirs, where they are at hand.
        """
        if len(self._places) > _HELD:
            self._places, self._known = {}, self._known[:0]
        new = [index for index, one in enumerate(genotypes) if one not in self._places]
        if new:
            new_rows = self._encoding.rows([genotypes[index] for index in new]) if rows is None else rows[new]
            predicted = np.stack([model.predict(new_rows) for model in self._models], axis=1)
            self._places.update((genotypes[index], len(self._known) + at) for at, index in enumerate(new))
            self._known = np.concatenate([self._known, predicted])
        found = self._known[[self._places[one] for one in genotypes]]
        if self._is_raced:
            return found[:, :, 0], found[:, :, 1]
        ends = found[:, :, 1] / np.sqrt(1 + FURTHER)  # in deviations of scores after a whole training
        return ends, ends

    def solved(self, values: Floats, ones: Floats, columns: Floats, tiny: float) -> tuple[Floats, float]:
        """The weights, 0 or more, that together with a constant suit values best, and what they cost.

        All are whitened by the model's covariance.

        Args:
            tiny: how much the constant is believed to be 0.

        Returns:
            The weights, and the penalty for those that are not believed in, to be added to the sum of squares.
        """
        ends = np.append(ones, np.sqrt(tiny))
        rest = np.vstack([np.column_stack([values, columns]), np.zeros(columns.shape[1] + 1)])
        rest -= np.outer(ends, ends @ rest / (ends @ ends))
        belief, expected = np.sqrt(_BELIEF * len(self._models)), self.expected
        left = np.vstack([rest[:, 1:], belief * np.eye(len(expected))])
        weights, _ = nnls(left, np.concatenate([rest[:, 0], belief * expected]))
        off = belief * (weights - expected)
        return weights, float(off @ off)


class EarlierModels:
    """The models of all earlier tasks, goal by goal; each is made once, when it is first asked for.

    Args:
        goals: of this search, in the order of a trial's values.
        most: scores that a model is made of, those after the longest trainings.

    Attributes:
        tasks: that they are of.
        goals: of this search.
    """

    def __init__(self, tasks: Sequence[EarlierTask], goals: Sequence[Goal], encoding: OneHot, *, most: int) -> None:
        self.tasks, self.goals, self._encoding, self._most = tasks, tuple(goals), encoding, most
        self._models: dict[int, list[EarlierModel]] = {}
        self._priors: dict[tuple[tuple[int, ...], bool], Prior | None] = {}

    def models(self, place: int) -> list[EarlierModel]:
        """For the goal at this place, of each task that tells enough of it."""
        if place not in self._models:
            found = (self._model(task, self.goals[place]) for task in self.tasks)
            self._models[place] = [one for one in found if one is not None]
        return self._models[place]

    def prior(self, places: Iterable[int], *, is_raced: bool) -> Prior | None:
        """The prior mean of a number that rises with the goals at these places; None where no task has a model."""
        key = (tuple(places), is_raced)
        if key not in self._priors:
            models = [one for place in key[0] for one in self.models(place)]
            self._priors[key] = Prior(models, self._encoding, is_raced=is_raced) if models else None
        return self._priors[key]

    def _model(self, task: EarlierTask, goal: Goal) -> EarlierModel | None:
        scored = [one for one in task.scores if goal.name in one.values]
        # positions that only a few of its networks have cost these few, not the position
        space = self._encoding.space
        common = [name for name in space if 2 * sum(name in one.params for one in scored) >= len(scored)]
        kept = [one for one in scored if all(name in one.params for name in common)]
        kept = sorted(kept, key=lambda one: -one.steps)[: self._most]
        genotypes = [tuple(one.params[name] for name in common) for one in kept]
        if not common or len(set(genotypes)) < _FEWEST:
            return None
        sign = 1 if goal.maximize else -1
        values = np.array([sign * one.values[goal.name] for one in kept], dtype=np.float64)
        shares = np.array([one.steps / task.whole_steps for one in kept], dtype=np.float64)
        return EarlierModel(genotypes, values, shares, names=common, encoding=self._encoding)
