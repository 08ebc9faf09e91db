"""A search of KerasTuner, whose interrupted trial continues."""

from __future__ import annotations

from typing import Any

from tests.ways.catalogue.basics import dataset, model
from tests.ways.late import keras
from tests.ways.way import ONE, Exact, Refused, Run, Warned, Way

TRIALS = 3


def _tuner(run: Run, ours_in_each_trial: bool, own_data: bool = True) -> Any:
    """The recipe of docs/guarantees.md."""
    import keras_tuner

    class Model(keras_tuner.HyperModel):
        trial_id = ""

        def build(self, hp: Any) -> Any:
            keras.utils.set_random_seed(5)
            return model(run, optimizer=keras.optimizers.Adam(hp.Float("rate", 1e-3, 1e-1, sampling="log")))

        def fit(self, hp: Any, made: Any, *data: Any, callbacks: Any = (), **arguments: Any) -> Any:
            ours = (
                run.callbacks(callbacks, f"{run.directory}/{self.trial_id}")
                if ours_in_each_trial
                else callbacks
            )
            if own_data:
                data, arguments["validation_data"] = (dataset(),), dataset()
            return made.fit(*data, callbacks=ours, **arguments)

    class Tuner(keras_tuner.RandomSearch):
        def on_trial_begin(self, trial: Any) -> None:
            super().on_trial_begin(trial)
            self.hypermodel.trial_id = trial.trial_id

    return Tuner(
        Model(),
        objective="val_loss",
        max_trials=TRIALS,
        executions_per_trial=2,
        seed=3,
        directory=str(run.work),
        project_name="search",
    )


def _search(run: Run, own_data: bool, seeded: bool = True) -> None:
    if seeded:
        keras.utils.set_random_seed(1)
        data, validation = dataset(), dataset()
    tuner = _tuner(run, ours_in_each_trial=True, own_data=own_data)
    if not seeded:
        data, validation = dataset(), dataset()
    tuner.search(data, validation_data=validation, epochs=2, verbose=0)
    for trial in tuner.oracle.get_best_trials(TRIALS):
        run.keep(**{f"trial {trial.trial_id}": [trial.hyperparameters.values, trial.score, trial.best_step]})
    (best,) = tuner.get_best_models(1)
    run.keep_model(best)


def _copied(run: Run) -> None:
    _tuner(run, ours_in_each_trial=False).search(dataset(), epochs=2, verbose=0, callbacks=run.preemption())


WAYS = (
    Way(
        "tuner",
        "KerasTuner: the interrupted trial continues where it was",
        lambda run: _search(run, own_data=True),
        {ONE: Exact("each trial has its own directory and dataset, and `HyperModel.build` sets the seed")},
        strikes=("batch 40",),
        needs=("keras_tuner",),
    ),
    Way(
        "tuner-shared-data",
        "KerasTuner, one dataset for all trials",
        lambda run: _search(run, own_data=False),
        {
            ONE: Exact(
                "each trial has its own directory, `HyperModel.build` sets the seed, and the script sets it, makes the "
                "dataset, and then the tuner"
            )
        },
        strikes=("batch 40",),
        needs=("keras_tuner",),
    ),
    Way(
        "tuner-shared-data-late-seed",
        "the same, with the seed set in `HyperModel.build` alone",
        lambda run: _search(run, own_data=False, seeded=False),
        {
            ONE: Warned(
                "a search that is started again builds no model before the dataset is made, so that its shuffle has "
                "another seed. Set the seed right before",
                "NOT exact.*shuffles of the data, or their seeds, differ",
                at_restart=True,
            )
        },
        strikes=("batch 40",),
        needs=("keras_tuner",),
    ),
    Way(
        "tuner-one-callback",
        "a PreemptionCallback given to KerasTuner's `search`",
        _copied,
        {
            ONE: Refused(
                "KerasTuner copies it for each trial, and all trials would share one directory", "each trial"
            )
        },
        needs=("keras_tuner",),
    ),
)
