"""A preemption changes nothing: put this into tests/ beside your other tests, and name your own script.

`preemption_drill` is a fixture that pytest finds where keras-preempt is installed.
"""

from __future__ import annotations


def test_a_preemption_changes_not_a_single_bit(preemption_drill):
    verdict = preemption_drill("train.py", at="step:3", timeout=900)
    assert verdict.identical, verdict
    assert verdict.steps_lost == 0


def test_a_machine_that_is_gone_at_once_costs_no_more_than_was_trained_since_the_last_save(preemption_drill):
    verdict = preemption_drill("train.py", at="step:7", kill=True, save_every=2, timeout=900)
    assert verdict.identical, verdict
