"""A Slurm of a test's own: munged, slurmctld and two slurmd on this machine, beside any that it may have already.

Ports, state, spool, logs, key and socket are the test's own, in a temporary directory. The daemons and the jobs belong
to the user that runs the test, so that it need not be root. The two nodes are 127.0.0.1 and 127.0.0.2: names that are
addresses of this machine, so that the tasks of a job find each other as on a cluster.
"""

from __future__ import annotations

import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from keras_preempt.cluster.local import find_free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "sinfo", "squeue", "scancel")
NODES = ("127.0.0.1", "127.0.0.2")
GRACE = 120
"""Seconds that a job of the partition `low` has after the notice of a preemption."""

# Nodes say that they have more CPUs than this machine, so that the script's own --cpus-per-task=8 fits. A task that
# exits with a status other than 0 ends the whole step unless the script asks for something else, as on some clusters.
# A node that was set down stays down until it is resumed. Tasks find their ports by the number of the job, so that two
# of these Slurms on one machine must not count alike.
_CONFIGURATION = """\
ClusterName=keras-preempt
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
FirstJobId={first_job}
KillOnBadExit=1
KillWait=120
ReturnToService=0
NodeName={nodes[0]} Port={ports[1]} CPUs=16
NodeName={nodes[1]} Port={ports[2]} CPUs=16
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 GraceTime={grace}
PartitionName=at-once Nodes=ALL PriorityTier=1
PartitionName=cancelled Nodes=ALL PriorityTier=1 PreemptMode=CANCEL
PartitionName=high Nodes=ALL PriorityTier=10
"""


def why_not() -> str:
    """Says why Slurm cannot be started here, and what to do; empty if it can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if not missing:
        return ""
    install = "apt-get update && apt-get install -y slurm-wlm munge"
    return f"Slurm is not installed (no {', '.join(missing)}): {install}"


class Slurm:
    """A running Slurm; a context manager that ends it and removes everything that it has left."""

    def __init__(self) -> None:
        self._around = ExitStack()
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Slurm:
        with ExitStack() as around:
            # Not pytest's directory: munged wants one that everybody may enter, and a short path for its socket.
            self._folder = Path(tempfile.mkdtemp(prefix="keras-preempt-slurm-"))
            around.callback(shutil.rmtree, self._folder)
            self._folder.chmod(0o755)
            self.environment = {
                **{name: value for name, value in os.environ.items() if not name.startswith("SLURM")},
                "SLURM_CONF": str(self._folder / "slurm.conf"),
            }
            around.callback(self._end_all)
            self._start()
            self._around = around.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._around.close()

    def command(self, *words: str, extra: Mapping[str, str] | None = None) -> str:
        """Runs a command of Slurm; returns what it prints, and fails if the command does."""
        done = self._run(*words, extra=extra)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}\n{self.describe()}"
        return done.stdout.strip()

    def wait_until(self, holds: Callable[[], bool], what: str, timeout: float) -> None:
        """Waits until something holds that Slurm has to be asked for, at most `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not holds():
            assert time.monotonic() < deadline, f"not within {timeout:g} s: {what}\n{self.describe()}"
            time.sleep(0.2)  # Slurm tells nobody; its own commands that wait ask in the same way.

    def describe(self) -> str:
        """The last lines of all logs, and the queue."""
        parts = [self._run("squeue").stdout]
        for path in sorted(self._folder.glob("*.log")):
            parts += [f"--- {path.name}", *path.read_text(errors="replace").splitlines()[-25:]]
        return "\n".join(parts)

    def cut_power(self, node: str) -> None:
        """Ends everything that runs on a node, its daemon included, without a notice."""
        for pid in self._processes(node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start_node(self, node: str) -> None:
        """Starts the daemon of a node again, and lets the node have jobs."""
        self._daemon("slurmd", "-D", "-N", node)
        self.command("scontrol", "update", f"NodeName={node}", "State=RESUME")
        self.wait_until(lambda: node in self.nodes("idle"), f"{node} is idle", 60)

    def processes_of_jobs(self, node: str | None = None) -> list[int]:
        """What runs in jobs of this Slurm, on one node or all; for all, also what it runs of Slurm's own commands."""
        mark = {f"SLURM_CONF={self.environment['SLURM_CONF']}".encode()}
        if node is not None:
            mark.add(f"SLURMD_NODENAME={node}".encode())
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # Gone, or somebody else's.
                if mark <= set((folder / "environ").read_bytes().split(b"\0")):
                    found.append(int(folder.name))
        return found

    def _start(self) -> None:
        folder, key = self._folder, self._folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                folder=folder,
                host=socket.gethostname().partition(".")[0],
                user=getpass.getuser(),
                ports=find_free_ports(3),
                first_job=random.SystemRandom().randrange(1, 60_000),
                nodes=NODES,
                grace=GRACE,
            )
        )
        files = {
            "socket": "munge.socket",
            "log-file": "munged.log",
            "pid-file": "munged.pid",
            "seed-file": "seed",
        }
        options = [f"--{option}={folder / name}" for option, name in files.items()]
        self._daemon("munged", "--foreground", f"--key-file={key}", *options)
        self.wait_until((folder / "munge.socket").exists, "munged listens", 30)
        self._daemon("slurmctld", "-D")
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node)
        self.wait_until(lambda: self.nodes("idle") == list(NODES), "both nodes are idle", 60)

    def nodes(self, state: str) -> list[str]:
        """The nodes in a state."""
        return sorted(self._run("sinfo", "-h", "-N", "-p", "low", "-t", state, "-o", "%N").stdout.split())

    def _daemon(self, *words: str) -> None:
        log = self._folder / f"{words[0]}{'-' + words[-1] if words[-1] in NODES else ''}-start.log"
        with log.open("wb") as output:
            self._daemons.append(
                subprocess.Popen(
                    words, env=self.environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
                )
            )

    def _run(self, *words: str, extra: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        env = {**self.environment, **(extra or {})}
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)

    def _end_all(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.terminate()
        for daemon in self._daemons:
            try:
                daemon.wait(10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait(10)
        deadline = time.monotonic() + 30
        while left := self._processes():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            assert time.monotonic() < deadline, f"processes {left} outlive SIGKILL"
            time.sleep(0.05)

    def _processes(self, node: str | None = None) -> list[int]:
        """The processes of this Slurm and of its jobs; on one node, or all."""
        # A daemon writes its title over its variables, but has its log open.
        logs = {str(path) for path in self._folder.glob("*.log" if node is None else f"slurmd-{node}.log")}
        found = self.processes_of_jobs(node)
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # Gone, or somebody else's.
                if logs & {os.readlink(link) for link in (folder / "fd").iterdir()}:
                    found.append(int(folder.name))
        return found
