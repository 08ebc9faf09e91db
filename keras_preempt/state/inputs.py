"""The position of the training input, and how a restart gets there again.

There are six ways:

- the *state* of the iterator, for a plain pipeline on one device: exact, and nothing is drawn twice;
- the state of the *new* iterator, from which its batches are drawn again and dropped: at the end of an epoch, where the
  iterator's state lacks the reshuffling of the epochs to come, and where a shuffle buffer takes too long to save;
- a *snapshot* from a little earlier, and the batches since then, which are drawn again and dropped: for pipelines that
  a strategy distributes (see `snapshots`). It is saved beside a position to replay to, for older releases;
- a *replay*: the same number of iterators is made, and the batches of the last one are drawn again. It is exact if the
  pipeline gives the same elements again (seeded shuffles). Of a `keras.utils.PyDataset` it is the interrupted epoch
  alone, in which nothing is drawn again if its batches do not depend on each other: see `py_dataset`;
- the *order* of the epoch: arrays are taken up at the next batch of it;
- the state of a *Grain* iterator, see `grain`.

If it is known how far the shuffles of the pipeline had come when an iterator was made (see `shuffles`), a replay begins
with the iterator that training continues with, and other iterators of the shuffles do not matter.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_preempt.backend import pipelines
from keras_preempt.backend.keras import py_batches
from keras_preempt.backend.keras.input_feed import InputFeed
from keras_preempt.backend.seam import backend
from keras_preempt.checkpoint.worker_values import WorkerValues
from keras_preempt.process.words import counted, size_in_words
from keras_preempt.state import grain, plain, py_dataset, randomness
from keras_preempt.state.component import Component, RestoreMoment, StoredState
from keras_preempt.state.drawing import check_length, draw, drawn_again
from keras_preempt.state.input_exactness import drew_globally, has_python_code
from keras_preempt.state.input_size import StateLimit, expected_seconds, limit_of, too_much
from keras_preempt.state.shuffles import Counts, Shuffles
from keras_preempt.state.snapshots import Snapshots

logger = logging.getLogger("keras_preempt")

_IN_ORDER = "in the order of its epoch, of which nothing was drawn again"

_STATE = "input/state"
_UNTOUCHED = "input/untouched"
_ORDER = "input/order"


def record_states(feed: InputFeed, shuffles: Shuffles | None = None, limit: StateLimit | None = None) -> None:
    """Keeps the state of each new iterator of the feed, if that can be saved: a few kilobytes, once an epoch.

    If the shuffles of the fit are given, how far they had come when an iterator was made is recorded as well.
    """
    feed.state_limit = limit = limit or limit_of()
    if shuffles is not None:
        feed.note = shuffles.counts
    if not limit.replays:
        feed.record_grain()
    if feed.is_indexed:
        return  # Its order is enough.
    if limit.replays or feed.draws_early:
        feed.why_replayed = too_much(feed) or ""
    elif pipelines.never_has_state(feed.dataset):
        if feed.is_shared:
            feed.why_replayed = "TensorFlow cannot save its state"
    elif not feed.is_shared:
        feed.look = pipelines.iterator_state
    elif why := too_much(feed, caches=True):
        feed.why_replayed = why
    elif (tap := backend().tap(feed.dataset)) is not None:
        feed.snapshots = Snapshots(feed, tap, limit.size, expected_seconds(feed))


class Input(Component):
    """The training input.

    Attributes:
        how: How a restart has got to its position, in words.
        seconds: How long that took.
    """

    before_validation = False

    def __init__(self, feed: InputFeed, shuffles: Shuffles | None = None) -> None:
        self._feed, self._shuffles = feed, shuffles
        self._place: Mapping[str, Any] = {}
        self.how, self.seconds = "", 0.0

    def locate(self, phase: str) -> None:
        """Has to be called before anything is captured.

        It may make the iterator that the pending step draws from, which advances shuffles.
        """
        self._place = self._feed.position(pending=phase == "train")

    def capture(self, phase: str, values: WorkerValues) -> dict[str, Any]:
        """Returns the position of the feed, with the iterator's state added to `values` if it has one."""
        feed, arrays, inside = self._feed, values.local, phase == "train"
        captured: dict[str, Any] = {"position": dict(self._place), "way": "replay"}
        if feed.noted and feed.noted[-1] is not None:
            captured["made_at"] = feed.noted if _needs_all(feed, known=True) else feed.noted[-1:]
        if (epoch := py_dataset.capture(feed, arrays, inside=inside)) is not None:
            captured["epoch"] = epoch
        if feed.live is not None and feed.snapshots is not None:
            snapshot = feed.snapshots.capture(int(self._place["batches"]), arrays)
            if snapshot is not None:
                captured["snapshot"] = snapshot
        if (inside or self._place["current"]) and (order := feed.order) is not None:
            captured["order"] = plain.encode(order, arrays, _ORDER)
        if feed.keeps_workers:
            captured["workers"] = True
        if (state_of_grain := grain.capture(feed, self._place, arrays, inside=inside)) is not None:
            captured["grain"] = state_of_grain
        if feed.live is None or feed.untouched is None:
            return {"input": captured}
        state = None if (left_out := too_much(feed)) else pipelines.iterator_state(feed.live)
        if state is not None and len(state) > feed.state_limit.size:
            left_out = f"it has {size_in_words(len(state))}"
        if left_out is None and (state is None or pipelines.keeps_every_shuffle(state, feed.dataset)):
            if state is None:
                return {"input": captured}
            captured["way"] = "state"
            arrays[_STATE] = np.frombuffer(state, np.uint8)
        elif pipelines.keeps_every_shuffle(feed.untouched, feed.dataset):
            captured["way"] = "new"
        if left_out is not None:
            logger.info("The state of the input's iterator is left out of the checkpoint: %s.", left_out)
        if captured["way"] != "replay":
            arrays[_UNTOUCHED] = np.frombuffer(feed.untouched, np.uint8)
        return {"input": captured}

    def restore(self, saved: StoredState, moment: RestoreMoment) -> None:
        if moment is not RestoreMoment.BEGIN:
            return
        began = time.monotonic()
        phase, batch = saved.position.phase, saved.position.batch
        self.how = self._continue(saved, batch if phase == "train" else None)
        self.seconds = time.monotonic() - began
        if phase == "validation":
            self._feed.shorten_next_epoch(None)

    def _continue(self, saved: StoredState, batch: int | None) -> str:
        """Makes the feed continue with a step of the epoch; returns how it was done, in words.

        `batch` is None if the position is not inside an epoch's training. The shuffles are not back where they stood
        afterwards: see `StoredState.drawing`. Every worker asks the others whether all can go its way, if anything was
        drawn: a replay draws from what a strategy has distributed, and the workers of some do that in step, so that one
        which draws while another goes on from a state would wait for it. Raises `ValueError` if the saved state does
        not fit the pipeline, or the pipeline ends before the position.
        """
        feed, shuffles = self._feed, self._shuffles
        captured, arrays = saved.state["input"], saved.values.local
        position, epoch = captured["position"], captured.get("epoch")
        made, drawn = int(position["iterators"]), int(position["batches"])
        made_at: list[Counts | None] = list(captured.get("made_at", ()))
        readable = shuffles if shuffles is not None and shuffles.readable else None
        counted_by = readable if made_at and made_at[-1] is not None else None
        made_before = int(position.get("made_before", 0))
        if (
            counted_by is None
            and (readable is None or made > 0)
            and made_before != feed.made_before
            and any(any(pipelines.shuffle_buffers(pipeline)) for pipeline in feed.pipelines)
        ):
            logger.warning(
                "NOT exact: earlier fits had gone through the dataset %d times when this one was saved, and %d times "
                "now, so that it may be shuffled in another order from the next epoch on. Make a dataset for each fit "
                "that is not run again after a restart, such as a trial of KerasTuner.",
                made_before,
                feed.made_before,
            )
        feed.had_workers = bool(captured.get("workers"))
        if made == 0:
            if epoch is not None:
                py_dataset.restore(feed, epoch, arrays)
            feed.resume(position, None, batch=None)
            return "nothing was drawn yet"
        began = time.monotonic()
        still_drawn_from = batch is not None or bool(position["current"])
        left = drawn if still_drawn_from else 0
        # An execution of several steps may have drawn less than it was asked for, but not nothing.
        required = 0 if batch is None else drawn - feed.steps_per_execution + 1
        if counted_by is not None:
            counted_by.go_to(made_at[-1])

        # What this worker could continue from, and whether all of them can.
        snapshot = captured.get("snapshot") if feed.snapshots is not None else None
        if snapshot is not None and (why_not := feed.snapshots.refuses(snapshot, drawn)):
            logger.info("The input is replayed, and not continued from its snapshot: %s.", why_not)
            snapshot = None
        from_grain = (
            grain.restore(feed, captured.get("grain"), arrays, left, required) if snapshot is None else None
        )
        leave_out = drawn if batch is not None and epoch is not None and epoch.get("independent") else 0
        way = "snapshot" if snapshot is not None else "Grain" if from_grain is not None else "saved"
        if not saved.all_go("rest of the epoch" if leave_out else way):
            leave_out = 0
            if way != "saved":
                logger.info("The input is replayed: not all workers can continue it from a saved state.")
            if feed.grain is not None:
                feed.grain.prepared = None
            snapshot = from_grain = None
        left_out = epoch is not None and py_dataset.restore(feed, epoch, arrays, leave_out)

        if snapshot is not None:
            live, there, draws = feed.snapshots.resume(snapshot, arrays, drawn, required)
            how = f"{there}, {drawn_again(draws, began)}"
        elif captured["way"] == "state":
            live = feed.new()
            feed.untouched = arrays[_UNTOUCHED].tobytes()
            state = arrays[_STATE].tobytes()
            pipelines.restore_iterator(live, state)
            how = f"from the iterator's saved state, {size_in_words(len(state))}"
        elif captured["way"] == "new":
            live = feed.new()
            feed.untouched = arrays[_UNTOUCHED].tobytes()
            pipelines.restore_iterator(live, feed.untouched)
            draws = drawn if still_drawn_from or _needs_all(feed, known=counted_by is not None) else 0
            draw(live, [draws], required, lambda: live)
            how = f"from the state of the epoch's new iterator, {drawn_again(draws, began)}"
        elif from_grain is not None:
            live, how = feed.new(), from_grain
        elif feed.is_indexed:
            check_length(feed, required)
            order = plain.decode(captured["order"], arrays) if "order" in captured else None
            live = feed.new_at(left, order)
            if feed.by_state and order is not None and "state" in order:
                how = "from what the state_dict() of its loader gave"
            elif feed.redraws or feed.by_state:
                how = f"by replay of its epoch: {counted(left, 'batch')} to draw again"
            else:
                how = _IN_ORDER
        elif left_out:
            check_length(feed, required)
            live, how = feed.new(), _IN_ORDER
        elif epoch is not None:
            live, draws = feed.new(), drawn if batch is not None else 0
            draw(live, [draws], required, lambda: live)
            how = f"by replay of its epoch: {drawn_again(draws, began)}"
        else:
            all_of_it = _needs_all(feed, known=counted_by is not None)
            again = [int(batches) if all_of_it else 0 for batches in position["drawn_before"][: made - 1]]
            again.append(drawn if all_of_it else left)
            following: Callable[[], Any] = feed.new
            if counted_by is not None:
                if all_of_it and len(made_at) == made:
                    following = _each_at(feed, counted_by, made_at)
                else:  # The iterators before do not matter, or it is not known how far the shuffles were.
                    again = again[-1:]
                    following = _each_at(feed, counted_by, made_at[-1:])
            whole = not feed.draws_early  # On torch every new iterator draws a seed.
            drawn_from = randomness.fingerprint(of_backend=whole)
            adapter = feed.epoch_iterator.data_adapter
            live = draw(
                following(), again, required, following, left=lambda: py_batches.stop_workers(adapter)
            )
            drew = randomness.fingerprint(of_backend=whole) != drawn_from
            if drew and (why := drew_globally(feed)):
                logger.warning("NOT exact: %s.", why)
            how = f"by replay of {counted(len(again), 'iterator')}, {drawn_again(sum(again), began)}"
        feed.noted = made_at
        feed.resume(position, live, batch=batch)
        return how


def _each_at(feed: InputFeed, shuffles: Shuffles, made_at: Sequence[Counts | None]) -> Callable[[], Any]:
    """Returns what makes one iterator after the other, each with the shuffles as they were then."""
    left = iter(made_at)

    def following() -> Any:
        shuffles.go_to(next(left))
        return feed.new()

    return following


def drawn_again_at_most(feed: InputFeed, epochs: int) -> tuple[int, str] | None:
    """Returns how many batches a resume draws again at most, and when, in words; None for few, or if it is not known.

    The feed has made an iterator; the fit has so many epochs.
    """
    replays = feed.state_limit is not None and feed.state_limit.replays
    piped = feed.undistributed is not None
    in_state = piped and not feed.is_shared and not pipelines.never_has_state(feed.dataset)
    if feed.redraws and feed.batches is not None:
        return feed.batches, "at the end of an epoch"
    if feed.batches is None or feed.is_indexed or feed.grain is not None or (in_state and not replays):
        return None
    if feed.snapshots is not None and not feed.snapshots.given_up:
        return None
    if feed.py_dataset is not None and feed.asked.independent:
        return None
    known = bool(feed.noted) and feed.noted[-1] is not None
    if feed.py_dataset is None and (feed.goes_on or _needs_all(feed, known=known)):
        return feed.batches * epochs, "at the end of training"
    return feed.batches, "at the end of an epoch"


def draw_again(
    feed: InputFeed,
    draws: Sequence[int],
    shuffles: Shuffles | None = None,
    made_at: Sequence[Counts | None] = (),
) -> None:
    """Makes the iterators of earlier validations, and draws from them again if later ones depend on that.

    From each iterator of the feed so many batches were drawn; `shuffles` are given if it is known how far they had come
    when each was made.
    """
    if not draws:
        return
    with feed.kept_states():
        _draw_again(feed, draws, shuffles, made_at)
    feed.begin_with(draws)


def _draw_again(
    feed: InputFeed, draws: Sequence[int], shuffles: Shuffles | None, made_at: Sequence[Counts | None]
) -> None:
    if feed.draws_early and feed.is_indexed:
        return  # To make an iterator may start processes, and none depends on another.
    if shuffles is not None:
        if feed.is_generator or any(map(pipelines.keeps_an_order, feed.pipelines)):
            following = _each_at(feed, shuffles, made_at)
            draw(following(), list(draws), 0, following)
        feed.noted = list(made_at)
    else:
        matters = feed.is_generator or any(map(pipelines.reshuffles_while_drawn, feed.pipelines))
        draw(feed.new(), list(draws) if matters else [0] * len(draws), 0, feed.new)


def _needs_all(feed: InputFeed, *, known: bool) -> bool:
    """Whether the batches of earlier iterators have to be drawn again for the later ones to be the same.

    That depends on whether it is known how far the shuffles had come when an iterator was made.
    """
    if feed.is_indexed:
        return False
    if feed.undistributed is None or has_python_code(feed):
        return True
    depends = pipelines.keeps_an_order if known else pipelines.reshuffles_while_drawn
    return any(map(depends, feed.pipelines))
