"""How many requests a checkpoint in a bucket takes."""

from __future__ import annotations

import re
from collections import Counter

from bucket_services import served_here, store_of
from bucket_ways import commit_checkpoint, share_of, state

from keras_preempt.checkpoint import incarnations
from keras_preempt.checkpoint.finding import committed
from keras_preempt.checkpoint.layout import attempt_directory, attempt_name
from keras_preempt.checkpoint.reader import load
from keras_preempt.checkpoint.retention import Retention
from keras_preempt.checkpoint.tidying import Tidying
from keras_preempt.checkpoint.writer import write_part
from keras_preempt.testing import Request

KINDS = ("writes", "listings", "reads", "deletions")
"""Kinds of requests. All services charge about the same for the first two, a tenth or less of that for reads, and
nothing for deletions."""

_LISTING = re.compile(r"[?&](?:prefix|delimiter|list-type|comp=list)\b")

WORKERS = 2


def count(scheme: str, size: int) -> dict[str, Counter[str]]:
    """Counts the requests of 2 workers, by what they do, and by kind.

    Args:
        scheme: Of the service.
        size: Bytes of the state.
    """
    tensors = state(size)
    counted = {}
    with served_here(scheme) as fake:
        stores = [store_of(scheme, "run", 8) for _ in range(WORKERS)]

        def save(step: int) -> None:
            for worker, store in enumerate(stores):
                directory = attempt_directory(step, attempt_name(1, step))
                write_part(store, directory, worker, share_of(tensors, worker, WORKERS))
            commit_checkpoint(stores[0], tensors, WORKERS, step)

        def since(what: str) -> None:
            counted[what] = Counter(map(_kind, fake.requests))
            fake.forget_requests()

        for store in stores:
            store.prepare()
        since("start of 2 workers (proof of access)")
        incarnations.claim(stores[0], {})
        fake.forget_requests()
        save(1)
        since("save and commit")
        save(2)
        fake.forget_requests()
        list(Tidying(stores[0], Retention(1), 1).tidy())
        since("removal of an older checkpoint")
        info = committed(stores[0])[0]
        fake.forget_requests()
        for worker, store in enumerate(stores):
            load(store, info, worker, WORKERS)
        since("restore by both workers")
        for store in stores:
            store.deadline = None
        since("training in between")
        for store in stores:
            store.close()
        since("end")
    return counted


def _kind(request: Request) -> str:
    if request.method == "DELETE" or "comp=batch" in request.path:  # Of deletions, to Azure.
        return "deletions"
    if request.method not in ("GET", "HEAD"):
        return "writes"
    return "listings" if _LISTING.search(request.path) else "reads"
