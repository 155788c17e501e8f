"""A measurement that is asked to stop."""

from __future__ import annotations

import contextlib
import ctypes
import threading

import pytest
import study_jobs

from mnemoscope.studies import run_measurement
from mnemoscope.studies._jobs import until_stopped
from mnemoscope.training import Stop


@pytest.mark.parametrize("function", [study_jobs.endless, study_jobs.endless_in_spite_of_errors])
def test_a_measurement_ends_when_it_is_asked_to(function, tmp_path):
    """It has nothing to save: Ctrl-C, the time that is up, and the death of the driver need not wait for it."""
    with pytest.raises(Stop):
        run_measurement(study_jobs.measure(function).config, tmp_path / "job", lambda: True)
    assert not (tmp_path / "job/summary.json").exists()
    job = study_jobs.measure(study_jobs.number, value=1.0)
    assert run_measurement(job.config, tmp_path / "job", lambda: False).startswith("measured")


@pytest.mark.parametrize("stops", [False, True])
def test_an_exception_in_the_midst_of_a_measurement_is_never_taken_back(stops, monkeypatch):
    """Python 3.11 would look for it ever after, and a profiled process would hang in its next function."""
    raised = []
    real = ctypes.pythonapi.PyThreadState_SetAsyncExc

    def record(thread, exception):
        raised.append(exception)
        return real(thread, exception)

    monkeypatch.setattr(ctypes.pythonapi, "PyThreadState_SetAsyncExc", record)
    monkeypatch.setattr("mnemoscope.studies._jobs.STOP_SECONDS", 1e-4)
    asked = threading.Event()
    for _ in range(50):
        asked.clear()
        with contextlib.suppress(Stop):  # which comes now within the call, now at its end
            until_stopped(lambda: stops and not asked.set(), asked.wait if stops else dict)
    assert len(raised) == (50 if stops else 0)
    assert None not in raised
