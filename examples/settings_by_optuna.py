"""Optuna chooses the settings of searches, each in a folder of its own: `python examples/settings_by_optuna.py`."""

import optuna

import l2l_nas


def accuracy(trial: optuna.Trial) -> float:
    rate = trial.suggest_float("learning_rate", 1e-3, 2e-2, log=True)
    result = l2l_nas.search("image_blocks", folder=f"runs/rates/{trial.number}", train={"learning_rate": rate})
    return result.best.validation["accuracy"]


if __name__ == "__main__":
    study = optuna.create_study(direction="maximize")
    study.optimize(accuracy, n_trials=10)
    print(study.best_params)
