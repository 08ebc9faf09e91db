"""Names of the environment variables that the package reads, or gives to the workers it starts.

One place for all of them, so that the launcher, the callback and the tests cannot disagree on a name. This
module imports nothing: the command line needs the names without waiting for TensorFlow.
"""

from __future__ import annotations

TF_CONFIG = "TF_CONFIG"
"""TensorFlow's own cluster description (JSON): set for each worker when there are two or more."""

KERAS_ADDRESSES = "KERAS_DISTRIBUTION_JOB_ADDRESSES"
"""The addresses of all workers, separated by commas, as ``keras.distribution.initialize`` reads them. JAX needs the
first, where process 0 hosts its coordination service."""

KERAS_PROCESSES = "KERAS_DISTRIBUTION_NUM_PROCESSES"
"""How many workers there are, as ``keras.distribution.initialize`` reads it."""

KERAS_PROCESS = "KERAS_DISTRIBUTION_PROCESS_ID"
"""The number of this worker, from 0, as ``keras.distribution.initialize`` reads it."""

TORCH_PROCESSES = "WORLD_SIZE"
"""How many processes ``torchrun`` has started; training on torch is refused beside others."""

STATUS_DIR = "KERAS_PREEMPT_STATUS_DIR"
"""Directory for ``fit-<index>.json`` of each worker when its fit begins, ``worker-<index>.json`` when it ends; set by
the launcher. One that watches for hangs makes ``beat-<index>`` in it: see ``process/heartbeat.py``."""

WORKER = "KERAS_PREEMPT_WORKER"
"""The number of this worker, from 0, by which these files are named; set by the launcher. A worker may train a model
of its own, in which it is number 0."""

DIRECTORY = "KERAS_PREEMPT_DIRECTORY"
"""Overrides the directory of every ``PreemptionCallback``."""

DRILL = "KERAS_PREEMPT_DRILL"
"""JSON ``{"member": m, "step": s}``: member m sends itself a real SIGTERM right before it starts step s. See
``drilled.rehearsal.Drill`` for the other moments and signals."""

DRILL_DIRECTORY = "KERAS_PREEMPT_DRILL_DIRECTORY"
"""Each directory of a ``PreemptionCallback`` is replaced by one of its own below this one; set by the drill. See
``drilled/places.py``."""

DRILL_RECORD = "KERAS_PREEMPT_DRILL_RECORD"
"""Directory in which each worker records every step with sums over its state, so that a drill can tell from which
step on two runs differ; set by the drill. It costs time at every step."""

SAVE_EVERY = "KERAS_PREEMPT_SAVE_EVERY"
"""Replaces ``save_every`` of every ``PreemptionCallback``: a number of steps, "epoch", or a time like "10min"."""

MEMORY_EVERY = "KERAS_PREEMPT_MEMORY_EVERY"
"""Replaces ``memory_every`` of every ``PreemptionCallback``: "auto", a number of steps, or a time like "10s"."""

MEMORY_DIR = "KERAS_PREEMPT_MEMORY_DIR"
"""Replaces ``memory_dir`` of every ``PreemptionCallback``."""

GRACE_PERIOD = "KERAS_PREEMPT_GRACE_PERIOD"
"""Replaces ``grace_period`` of every ``TerminationConfig``, in seconds."""

END_TIME = "KERAS_PREEMPT_END_TIME"
"""When the whole job ends, in seconds since 1970: set by ``run --time-limit``, or by the user where a scheduler does
not say it."""

INCARNATION = "KERAS_PREEMPT_LAUNCHER_INCARNATION"
"""How many times this launcher started the cluster before, counted from 0. For logs and test scripts only."""

PLATFORM = "KERAS_PREEMPT_PLATFORM"
"""Names the platform instead of having it detected, such as "gce-gpu" or "slurm"; "generic": no metadata."""

CLOUD = "KERAS_PREEMPT_CLOUD"
"""What metadata servers have told an earlier start: JSON [cloud or null, sign]; set by the launcher."""

GCE_METADATA_HOST = "GCE_METADATA_HOST"
"""Host or host:port of Compute Engine's metadata server, as Google's own libraries read it."""

GCE_METADATA_IP = "GCE_METADATA_IP"
"""The same, as TensorFlow reads it; `GCE_METADATA_HOST` wins."""

AWS_METADATA_ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
"""URL of EC2's metadata server, as Amazon's own libraries read it."""

AZURE_METADATA_HOST = "KERAS_PREEMPT_AZURE_METADATA_HOST"
"""Host or host:port of Azure's metadata server; Azure's own libraries have no such variable."""

RESTORE = "KERAS_PREEMPT_RESTORE"
"""How several workers read a checkpoint: "exchange" or "read"; see ``training/start/reading_together.py``."""

STANDBY = "KERAS_PREEMPT_STANDBY"
"""Tells Python's start in a worker to note imports, or to make them ahead: set by ``run --standby``, and gone before
the script starts; see ``cluster/standby_site``."""

JAX_CACHE = "JAX_COMPILATION_CACHE_DIR"
"""Where JAX keeps compiled programs; ``run`` and ``drill`` name a folder of their own if nobody has."""

JAX_CACHE_LEAST_SECONDS = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"
"""How long JAX must have compiled a program to keep it."""

JAX_CACHE_ENABLED = "JAX_ENABLE_COMPILATION_CACHE"
"""Whether JAX keeps any; true by default."""
