"""Search instead of a grid: Optuna suggests settings, a sweep trains four of them at a time (pip install optuna)."""

from dataclasses import replace

try:
    import optuna
except ModuleNotFoundError:
    raise SystemExit("this example needs Optuna: pip install optuna") from None

import mnemoscope
from mnemoscope.sweeps import run_job_of
from mnemoscope.tasks import Copy
from mnemoscope.training import FitConfig, NetworkConfig, RunConfig

BASE = RunConfig(Copy(T=20), NetworkConfig("RelRNN", hidden_size=32), FitConfig(updates=400))


def suggest(trial: optuna.Trial, base: RunConfig) -> RunConfig:
    """Return the run of a trial."""
    fit = replace(base.fit, lr=trial.suggest_float("lr", 1e-4, 1e-1, log=True))
    return replace(base, fit=fit, network=replace(base.network, options={"buffer": trial.suggest_int("buffer", 1, 9)}))


def main(rounds: int = 5, at_a_time: int = 4, base: RunConfig = BASE, folder: str = "sweeps/search") -> None:
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    for _ in range(rounds):
        # Runs are named by what they are: a search that is started again repeats its trials, but trains none twice.
        trials = [study.ask() for _ in range(at_a_time)]
        runs = [suggest(trial, base) for trial in trials]
        trained = mnemoscope.sweep(None, runs, folder, jobs=at_a_time)
        for trial, config in zip(trials, runs, strict=True):
            run = trained.run(run_job_of(config).name)
            summary = run.summary() if run else None
            failed = summary is None or summary.is_failure  # it diverged, say
            study.tell(trial, None if failed else summary.best, state=optuna.trial.TrialState.FAIL if failed else None)
    print(f"best accuracy {study.best_value:.3f} with {study.best_params}")


if __name__ == "__main__":
    main()
