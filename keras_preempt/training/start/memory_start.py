"""One worker's memory at the start of a fit: what it holds, what it gives to the others, what is saved there next."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager

from keras_preempt.backend.place import Place
from keras_preempt.checkpoint import machine_memory
from keras_preempt.checkpoint.errors import CheckpointError
from keras_preempt.checkpoint.exchange import Gather, give_all
from keras_preempt.checkpoint.finding import CheckpointInfo
from keras_preempt.checkpoint.in_memory import InMemory, given_by, take
from keras_preempt.checkpoint.machine_memory import MachineMemory
from keras_preempt.checkpoint.storage.store import Store
from keras_preempt.process import this_process
from keras_preempt.state.model import ModelState
from keras_preempt.training.run.participant import Participant
from keras_preempt.training.save.memory_options import MemoryOptions
from keras_preempt.training.save.memory_saves import MemorySaves
from keras_preempt.training.save.session import Session
from keras_preempt.training.start.handshake import Handshake

logger = logging.getLogger("keras_preempt")


class MemoryStart:
    """The memory of one worker; `options` are None if it does not save there."""

    def __init__(self, options: MemoryOptions | None, here: Place) -> None:
        self._options = options
        self._here = here
        self._memory: MachineMemory | None = None

    @property
    def holds_any(self) -> bool:
        """Whether this machine holds a checkpoint in memory, of whatever run."""
        return self._options is not None and machine_memory.holds_any(self._options.place)

    def hold(self, run_id: str) -> list[str]:
        """See `Startup.hold`."""
        if self._options is None:
            return []
        self._memory = MachineMemory(self._options.place, run_id, self._here.member)
        found = []
        for info in self._memory.holdings():
            if info.manifest is not None:
                found.append(info.manifest.to_json().decode())
            else:
                logger.warning("The checkpoint in memory %s is not used: %s", info.directory, info.error)
        return found

    def store_of(self, info: CheckpointInfo, store: Store) -> Store:
        """Returns where to read a checkpoint: in memory, or in the store of the run."""
        if not isinstance(info, InMemory):
            return store
        assert self._memory is not None
        return self._memory.store

    def meet(
        self,
        handshake: Handshake,
        number: int,
        info: InMemory,
        gather: Gather | None,
        exchanging: Callable[[], AbstractContextManager[None]],
    ) -> str | None:
        """See `Startup.meet`. `exchanging` settles the errors of `gather`, which is None for one worker."""
        here, memory = self._here, self._memory
        member = here.member

        def give() -> bytes:
            if memory is None:
                raise CheckpointError(f"worker {member} has no memory_every")
            memory.claim()
            memory.adopt(info.directory, [part for part, giver in info.givers.items() if giver == member])
            return given_by(memory, info, member)

        given, wrong = handshake.agree(f"given/{number}", info.directory, give)
        if given is None or gather is None:
            return wrong

        def taken() -> None:
            assert memory is not None
            with exchanging():
                for each in give_all(gather, here.members, member, given):
                    take(memory, info, each)

        return handshake.agree(f"taken/{number}", info.directory, taken, fails_by=(CheckpointError,))[1]

    def saves(
        self, participant: Participant, session: Session, model: ModelState, incarnation: int
    ) -> MemorySaves | None:
        """Gets ready to save in memory; where that is not possible, says so, and training goes on without."""
        options, memory, here = self._options, self._memory, self._here
        if options is None or memory is None:
            return None
        sizes = model.sizes()
        copies = min(options.copies, here.members - 1)
        try:
            if sizes.held:
                raise CheckpointError("variables are divided among processes, and only whole ones are.")
            memory.claim()
            memory.check_room(int(2 * (sizes.mirrored / here.members + sizes.local) * (1 + copies)))
        except CheckpointError as error:
            logger.warning("Nothing is saved in memory: %s", error)
            memory.close()
            return None
        saves = MemorySaves(options, memory, session, model, participant.coordinator, participant.number)
        saves.incarnation, saves.host = incarnation, this_process.machine()
        saves.on_kept = functools.partial(participant.status.kept_in_memory, here.member)
        runtime = participant.runtime

        def poke() -> None:
            runtime.attention = True

        saves.poke = poke
        participant.ending.add(saves.stop)
        return saves
