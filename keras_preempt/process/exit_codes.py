"""The exit statuses of a training process, and where each comes from."""

from __future__ import annotations

import signal

EXIT_RESTART = 75
"""EX_TEMPFAIL of sysexits.h: below 128, so never mistaken for a signal; systemd and LSF recipes use it."""

EXIT_NOT_SAVED = 74
"""EX_IOERR of sysexits.h: preempted, and the checkpoint could not be committed."""

EXIT_WORKER_LOST = 69
"""EX_UNAVAILABLE of sysexits.h: another worker was lost without a notice; what TensorFlow calls UnavailableError."""

EXIT_RESTART_GCE = 143
"""128 + SIGTERM: what TensorFlow's own handler exits with on Google Compute Engine."""

EXIT_RESTART_TPU = 42
"""What TensorFlow's own handler exits with on a TPU coordinator, once the workers are gone."""

RESTART_CODES = (EXIT_RESTART, EXIT_RESTART_GCE, EXIT_RESTART_TPU)
"""Those that ask for a restart, whatever else there is. `EXIT_WORKER_LOST` does where a checkpoint is."""


def signal_name(number: int) -> str:
    """Returns the name of a signal, such as "SIGKILL"; "signal 77" where it has none."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
