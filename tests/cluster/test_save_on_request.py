"""``keras-preempt save`` and real jobs: all workers save at one step, and train on as if nothing had happened."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from keras_preempt.checkpoint.layout import SAVE_REQUEST
from keras_preempt.cli.main import main
from keras_preempt.testing import FakeGcs
from tests.cli.saved_run import run
from tests.cluster.bucket import URL
from tests.cluster.harness import start_cluster
from tests.cluster.small_fit import Then, await_, fit
from tests.cluster.training import SCRIPT, Training, Undisturbed

SAVED = 0
PATIENCE = 240.0


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.chaos), 2])
def test_all_workers_save_at_one_step_and_train_on_as_if_nothing_had_happened(
    workers: int, tmp_path: Path, undisturbed: Undisturbed, capsys: Any
) -> None:
    training = Training(tmp_path, workers, ("--save-on-request", "0.05s", "--slow", "0.1"))
    with start_cluster(SCRIPT, workers, args=training.command) as job, ThreadPoolExecutor(2) as pool:
        job.wait_for_line(0, "^AT batch 0 0", timeout=240)
        job.signal(0, signal.SIGSTOP)
        both = [pool.submit(main, ["save", str(training.directory)]) for _ in range(2)]
        await_(lambda: (training.directory / SAVE_REQUEST).exists())
        job.signal(0, signal.SIGCONT)
        assert [asked.result(PATIENCE) for asked in both] == [SAVED] * 2
        assert capsys.readouterr().out.count("Saved step ") == 2
        training.results.append(job.wait(240).assert_ok())
    saves = [training.events(worker)[0] for worker in range(workers)]
    rounds = [[plan["target"] for plan in each["plan"] if plan["reason"] == "requested"] for each in saves]
    assert rounds == [rounds[0]] * workers
    assert 1 <= len(rounds[0]) <= 2, "two requests at once are one, or one after the other"
    assert [each["checkpoint"] for each in saves[0]["answered"]] == [
        f"step-{commit['step']:08d}/{commit['attempt']}" for commit in saves[0]["commit"][: len(rounds[0])]
    ]
    assert not (training.directory / SAVE_REQUEST).exists()
    training.assert_same(undisturbed(workers))


def test_a_job_that_is_preempted_meanwhile_answers_with_what_it_saves_then(
    tmp_path: Path, capsys: Any
) -> None:
    training = Training(tmp_path, 1, ("--save-on-request", "1h", "--slow", "0.1"))
    with start_cluster(SCRIPT, 1, args=training.command) as job, ThreadPoolExecutor(1) as pool:
        job.wait_for_line(0, "^AT batch 0 0", timeout=240)
        asked = pool.submit(run, capsys, "save", str(training.directory))
        await_(lambda: (training.directory / SAVE_REQUEST).exists())
        job.signal(0, signal.SIGTERM)
        code, output, _ = asked.result(PATIENCE)
        job.wait(120).assert_codes(75)
    assert code == SAVED, output
    assert "told to stop meanwhile" in output
    assert not (training.directory / SAVE_REQUEST).exists()


def test_in_a_bucket_each_look_is_one_request_for_the_metadata_of_one_object(
    gcs: FakeGcs, capsys: Any
) -> None:
    codes: list[int] = []
    looks: list[str] = []
    asking = threading.Thread(target=lambda: codes.append(run(capsys, "save", URL)[0]))

    def about_the_request() -> list[str]:
        return [request.text.partition("?")[0] for request in gcs.requests if SAVE_REQUEST in request.text]

    def ask_after_three_looks() -> None:
        await_(lambda: len(about_the_request()) >= 3)
        looks.extend(about_the_request())
        asking.start()
        await_(lambda: any(text.startswith("DELETE ") for text in about_the_request()))

    fit(URL, save_on_request="0.05s", more=[Then((0, 1), ask_after_three_looks)])
    asking.join()
    assert codes == [SAVED]
    assert {look.split(" ")[0] for look in looks} == {"GET"}
    assert all(look.endswith(f"/o/runs/1/{SAVE_REQUEST}") for look in looks), looks
