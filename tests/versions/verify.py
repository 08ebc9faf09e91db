"""Runs what must hold with a combination of versions to be called verified: the canaries, and a drill.

The canaries look at every private name that is relied upon; the drill preempts two workers once and compares every
bit. Combinations are both ends of the range of Keras and TensorFlow (oldest.txt and newest.txt beside this file), every
supported Python that is installed, tensorflow-tpu in place of TensorFlow, JAX without any TensorFlow, the newest for
each Python and the oldest, where processes are killed as well, and PyTorch, beside TensorFlow as a data loader and
without it as the backend, the oldest and the newest, with ways to train of its own that are preempted there: its wheels
for Linux are too large for everybody's environment. The ends, JAX and PyTorch are run from this repository, the others
from the wheel, installed as a user would into an empty virtual environment beside this repository's own. An environment
is kept until what it was made from changes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from keras_preempt.backend.versions import NEWEST_KERAS, NEWEST_TORCH, OLDEST_JAX, OLDEST_KERAS, OLDEST_TORCH

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
ENDS = ("oldest", "newest")
PYTHONS = ("3.10", "3.11", "3.12", "3.13")

CANARIES = (
    "tests/backend/tensorflow/test_repairs_canaries.py",
    "tests/backend/keras/test_fit_canaries.py",
    "tests/backend/tensorflow/test_canaries.py",
    "tests/backend/tensorflow/test_array_batches.py",
    "tests/backend/keras/test_py_batches.py",
)
JAX_CANARIES = ("tests/backend/jax", "tests/backend/keras/test_py_batches.py")
JAX_LOSSES = ("tests/cluster/test_jax.py", "-m", "chaos or not chaos", "-k", "process_0_ends or divided")
TORCH_CANARIES = ("tests/backend/torch", "tests/backend/keras/test_py_batches.py")
TESTED_WITH = ("pytest", "pytest-timeout", "tensorboard")

_WHICH = "import sys; print(sys.executable)"

_PATIENCE = 1200.0  # seconds for the canaries, and for the drill

# Quiet TensorFlow, plain arithmetic; two workers cannot share one GPU.
_ENVIRONMENT = {
    "KERAS_BACKEND": "tensorflow",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "CUDA_VISIBLE_DEVICES": "-1",
}


@dataclass(frozen=True)
class Combination:
    """What is verified together.

    Attributes:
        name: What it is chosen by.
        python: The interpreter that the environment is made with.
        install: What pip is given, beside what the tests need.
        from_wheel: Whether the package is installed from a wheel rather than used from this repository.
        settings: Environment variables that it needs.
        ways: Ways to train (of `tests.ways`) that need what it installs.
        ways_in: The file of tests that has them.
        workers: How many the drill starts.
        canaries: The tests that look at the private names of its backend.
        losses: The tests in which processes are killed.
    """

    name: str
    python: str
    install: tuple[str, ...]
    from_wheel: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    ways: tuple[str, ...] = ()
    ways_in: str = "tests/ways/test_inputs.py"
    workers: int = 2
    canaries: tuple[str, ...] = CANARIES
    losses: tuple[str, ...] = ()


def pins(end: str) -> dict[str, str]:
    """Returns the version of each package at that end, by its name."""
    lines = (HERE / f"{end}.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def is_installed(wanted: dict[str, str]) -> bool:
    """Whether the running interpreter has exactly these versions."""
    try:
        return all(metadata.version(package) == version for package, version in wanted.items())
    except metadata.PackageNotFoundError:
        return False


def combinations() -> list[Combination]:
    """Returns what can be verified on this machine."""
    found = [
        Combination(end, sys.executable, ("-e", ".[tensorflow,examples]", "-c", str(HERE / f"{end}.txt")))
        for end in ENDS
    ]
    locked = ("-c", "constraints.txt")
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    for version in PYTHONS:
        python = None if version == running else _interpreter(version)
        if python is not None:
            what = ("{wheel}[tensorflow,examples]", *locked)
            found.append(Combination(f"python{version}", python, what, from_wheel=True))
    if _tpu_wheels_are_for(running):
        # Outside of Google's cloud, libtpu would ask for a metadata server for minutes before it gives up.
        skip = {"TPU_SKIP_MDS_QUERY": "1"}
        what = ("{wheel}[tpu,examples]",)
        found.append(Combination("tpu", sys.executable, what, from_wheel=True, settings=skip))
    what = ("-e", ".[tensorflow,examples,torch]", *locked)
    on_jax = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "KERAS_PREEMPT_FRESH_PROCESSES": "1"}
    with_jax = ("-e", ".[jax,examples]")
    tests = {"settings": on_jax, "canaries": JAX_CANARIES, "losses": JAX_LOSSES}
    for version in PYTHONS:
        name = "jax" if version == running else f"jax-python{version}"
        python = sys.executable if version == running else _interpreter(version)
        if python is not None:
            found.append(Combination(name, python, (*with_jax, *locked), **tests))
    oldest = (*with_jax, f"jax=={OLDEST_JAX}", f"jaxlib=={OLDEST_JAX}")
    found.append(Combination("jax-oldest", sys.executable, (*oldest, f"keras=={NEWEST_KERAS}"), **tests))
    # This Keras trains under no distribution here.
    alone = {**tests, "losses": (), "workers": 1}
    found.append(
        Combination("jax-oldest-keras", sys.executable, (*oldest, f"keras=={OLDEST_KERAS}"), **alone)
    )
    beside = (*CANARIES, "tests/backend/test_across.py")
    found.append(Combination("torch", sys.executable, what, ways=("torch",), canaries=beside))
    for end, version in zip(ENDS, (OLDEST_TORCH, NEWEST_TORCH), strict=True):
        found.append(
            Combination(
                f"torch-{end}",
                sys.executable,
                ("-e", ".[torch,examples]", f"torch=={version}", "torchdata", *locked),
                settings={"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"},
                ways=("[loader", "[torch-"),  # Not the name of the file.
                ways_in="tests/ways/test_on_torch.py::test_on_torch",
                canaries=TORCH_CANARIES,
                workers=1,
            )
        )
    return found


def _interpreter(version: str) -> str | None:
    """Returns a Python of that version; None if there is none that starts."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    for program in (f"python{version}", *sorted(map(str, pyenv.glob(f"{version}.*/bin/python")))):
        try:
            said = subprocess.run([program, "-c", _WHICH], capture_output=True, text=True)
        except OSError:
            continue
        if said.returncode == 0:  # A shim of pyenv's may be there without its Python.
            return said.stdout.strip()
    return None


def _tpu_wheels_are_for(version: str) -> bool:
    return version in ("3.10", "3.11", "3.12")


def environment_of(combination: Combination, wheel: Path) -> Path:
    """Returns a Python with what the combination names; makes a virtual environment for it if need be."""
    if combination.name in ENDS and is_installed(pins(combination.name)):
        return Path(sys.executable)
    folder = REPOSITORY / f".venv-{combination.name}"
    python, ready = folder / "bin" / "python", folder / "ready"
    sources = [REPOSITORY / "pyproject.toml", REPOSITORY / "constraints.txt"]
    sources += [HERE / f"{combination.name}.txt"] if combination.name in ENDS else []
    asked_for = "".join([*combination.install, *(source.read_text() for source in sources)])
    quiet = ["-qq", "--disable-pip-version-check", "--no-compile"]
    if not (ready.is_file() and ready.read_text() == asked_for):
        print(f"Installing into {folder.name}; this takes some minutes once.", flush=True)
        if combination.python == sys.executable:
            venv.create(folder, clear=True, with_pip=True)
        else:
            subprocess.run([combination.python, "-m", "venv", "--clear", folder], check=True)
        what = [word.replace("{wheel}", str(wheel)) for word in combination.install]
        pip = [python, "-m", "pip", "install", *quiet, *what, *TESTED_WITH]
        subprocess.run(pip, cwd=REPOSITORY, check=True)
        ready.write_text(asked_for)
    elif combination.from_wheel:  # The package itself is always today's.
        renew = ["--no-deps", "--force-reinstall", str(wheel)]
        subprocess.run([python, "-m", "pip", "install", *quiet, *renew], cwd=REPOSITORY, check=True)
    return python


def built(folder: str) -> Path:
    """Builds the source distribution, and from it the wheel; returns the wheel."""
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, str(REPOSITORY)]
    subprocess.run(build, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    (wheel,) = Path(folder).glob("*.whl")
    return wheel


def tested(python: Path, tests: Sequence[str]) -> list[str]:
    """Returns the command that runs tests, such as those that look at every private name."""
    return [str(python), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]


def trained(python: Path, combination: Combination) -> list[str]:
    """Returns the command that preempts its ways to train under every strategy."""
    return tested(
        python, [combination.ways_in, "-m", "chaos or not chaos", "-k", " or ".join(combination.ways)]
    )


def drill(python: Path, folder: str, workers: int) -> list[str]:
    """Returns the command that preempts a worker once; `folder` is there for the checkpoints."""
    script = [str(python), str(REPOSITORY / "examples" / "digits.py")]
    job = [*script, f"{folder}/run", "--epochs", "2", "--batch-size", "64"]
    tool = [str(python), "-m", "keras_preempt", "drill"]
    return [*tool, "--workers", str(workers), "--preempt", "1", "--seed", "1", "--", *job]


_VERSIONS = (
    "import platform; from importlib.metadata import distributions as d; v = {x.name.lower(): x.version for x in d()}; "
    "t = v.get('tensorflow') or v.get('tensorflow-tpu') or v.get('tensorflow_tpu'); "
    "print('Python', platform.python_version() + ', Keras', v['keras'] + ',', "
    "'TensorFlow ' + t + ('' if 'tensorflow' in v else ' TPU') if t else 'JAX ' + v['jax'] if 'jax' in v else "
    "'torch ' + v['torch'])"
)


def verify(combination: Combination, wheel: Path) -> bool:
    """Runs everything with one combination; says how it went and how long it took."""
    began = time.monotonic()
    python = environment_of(combination, wheel)
    installed = time.monotonic()
    versions = subprocess.run(
        [python, "-c", _VERSIONS], capture_output=True, text=True, check=True
    ).stdout.strip()
    title = f"{combination.name}: {versions}"
    environment = {**os.environ, **_ENVIRONMENT, **combination.settings}
    with tempfile.TemporaryDirectory() as folder:
        # Not in the repository, whose package would be found before the installed one.
        away = Path(folder) if combination.from_wheel else REPOSITORY
        commands = [
            ("canaries", tested(python, combination.canaries), REPOSITORY),
            ("drill", drill(python, folder, combination.workers), away),
        ]
        if combination.losses:
            commands.append(("losses", tested(python, combination.losses), REPOSITORY))
        if combination.ways:
            commands.append(("ways", trained(python, combination), REPOSITORY))
        for what, command, where in commands:
            done = subprocess.run(
                command,
                cwd=where,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=_PATIENCE,
            )
            # A library may have the last word, as it leaves.
            said = [line for line in done.stdout.splitlines() if " passed" in line or "VERDICT: " in line]
            if done.returncode != 0 or not said:
                print(f"{done.stdout}\nFAILED with {title}: {what}", flush=True)
                return False
            print(f"{title}: {what}: {said[-1]}", flush=True)
    seconds = installed - began, time.monotonic() - installed
    print(f"{title}: installed in {seconds[0]:.0f} s, verified in {seconds[1]:.0f} s", flush=True)
    return True


def main(arguments: Sequence[str] | None = None) -> int:
    known = {combination.name: combination for combination in combinations()}
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--only", nargs="+", choices=known, metavar="NAME", help=f"some of {', '.join(known)}"
    )
    only = parser.parse_args(arguments).only
    missing = [f"python{version}" for version in PYTHONS if f"python{version}" not in known]
    running = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for name in missing:
        if name != running and not only:
            print(f"Not installed here, so not verified: {name}.", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        wheel = built(folder)
        # All of them, also if one fails: what else fails is worth knowing.
        results = [verify(known[name], wheel) for name in (only or known)]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
