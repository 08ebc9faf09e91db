from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_preempt.checkpoint.errors import StoreUnavailable
from keras_preempt.checkpoint.storage import staging
from keras_preempt.checkpoint.storage.staging import StagingDirectory, sweep

ROOT = Path(__file__).parents[3]
CHILD = """
import sys, os, signal, time
from keras_preempt.checkpoint.storage.staging import StagingDirectory
directory = StagingDirectory(sys.argv[1])
(directory.path / "file").write_bytes(b"x" * 1000)
"""


def _child(root: Path, then: str) -> subprocess.Popen[str]:
    """Starts a process that owns a staging directory, tells its name on a line, and does `then`."""
    command = [sys.executable, "-c", CHILD + then, str(root)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def _told(child: subprocess.Popen[str]) -> Path:
    assert child.stdout is not None
    return Path(child.stdout.readline().strip())


def _end(child: subprocess.Popen[str], text: str = "\n") -> int:
    child.communicate(text, timeout=60)
    return child.returncode


def test_a_staging_directory_is_private_not_shared_and_locked_against_cleaners_until_exec(
    tmp_path: Path,
) -> None:
    with StagingDirectory(tmp_path) as one, StagingDirectory(tmp_path) as other:
        assert one.path != other.path
        assert one.path.parent == other.path.parent == tmp_path
        assert one.path.stat().st_mode & 0o7777 == 0o700
        (one.path / "file").write_bytes(b"x")
        assert sweep(tmp_path) == []
        assert (one.path / "file").exists()
        assert not os.get_inheritable(one._lock)
        assert staging._try_lock(one.path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_staging_directory_is_removed_after_an_exception_or_when_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        with StagingDirectory(tmp_path) as directory:
            (directory.path / "file").write_bytes(b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.iterdir()) == []
    StagingDirectory(tmp_path)  # nobody keeps it
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    by_default = StagingDirectory()
    assert by_default.path.parent == tmp_path
    by_default.remove()
    by_default.remove()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("then", "code"),
    [
        ("", 0),
        ("raise ValueError", 1),
        ("signal.signal(signal.SIGTERM, lambda *_: sys.exit(143)); signal.raise_signal(signal.SIGTERM)", 143),
    ],
)
def test_a_staging_directory_is_removed_at_every_exit_that_python_survives(
    tmp_path: Path, then: str, code: int
) -> None:
    child = _child(tmp_path, f"print(directory.path, flush=True); {then}")
    path = _told(child)
    assert _end(child) == code
    assert path.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_the_staging_directory_of_a_killed_process_is_removed_by_the_next_one(tmp_path: Path) -> None:
    child = _child(tmp_path, "print(directory.path, flush=True); sys.stdin.read()")
    path = _told(child)
    child.kill()
    assert _end(child) == -signal.SIGKILL
    assert (path / "file").exists()
    with StagingDirectory(tmp_path) as directory:
        assert list(tmp_path.iterdir()) == [directory.path]


@pytest.mark.parametrize(
    "leaving", ["sys.exit(0)", "directory.remove(); sys.exit(0)", "os._exit(0)", "del directory"]
)
def test_a_forked_child_never_removes_its_parents(tmp_path: Path, leaving: str) -> None:
    then = f"""
pid = os.fork()
if pid == 0:
    {leaving}
    sys.exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert (directory.path / "file").exists()
print(directory.path, flush=True)
sys.stdin.readline()
"""
    child = _child(tmp_path, then)
    path = _told(child)
    assert (path / "file").exists()
    assert sweep(tmp_path) == []
    assert _end(child) == 0
    assert list(tmp_path.iterdir()) == []


def test_a_fork_that_python_was_not_told_of_removes_nothing_either(tmp_path: Path) -> None:
    with StagingDirectory(tmp_path) as directory:
        staging._remove(directory.path, directory._lock, os.getpid() + 1)
        assert directory.path.exists()
        assert sweep(tmp_path) == []


def test_a_forked_child_that_outlives_its_killed_parent_does_not_keep_it(tmp_path: Path) -> None:
    then = """
if os.fork() == 0:  # only when this process runs has it let go of the lock
    print(directory.path, flush=True)
    sys.stdin.readline()
    os._exit(0)
time.sleep(60)
"""
    child = _child(tmp_path, then)
    path = _told(child)
    child.kill()
    child.wait(60)
    assert path.exists()
    assert sweep(tmp_path) == [path]
    assert _end(child) == -signal.SIGKILL


def test_only_what_looks_like_ours_is_swept(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"")
    root = tmp_path / "root"
    root.mkdir()
    ours = "keras-preempt-staging-1-" + "0" * 16
    (root / "keras-preempt-staging-1").mkdir()
    (root / (ours + "x")).mkdir()
    (root / ("keras-preempt-staging-2-" + "0" * 16)).symlink_to(outside)
    (root / ("keras-preempt-staging-3-" + "0" * 16)).write_bytes(b"a file")
    kept = sorted(root.iterdir())
    (root / ours).mkdir()
    (root / ours / "link").symlink_to(outside)
    assert sweep(root) == [root / ours]
    assert sorted(root.iterdir()) == kept
    assert (outside / "precious").exists()


def test_another_users_are_not_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ("keras-preempt-staging-1-" + "0" * 16)).mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert sweep(tmp_path) == []


def test_a_sweeper_that_comes_between_making_and_locking_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = fcntl.flock
    swept: list[Path] = []

    def flock(descriptor: int, how: int) -> None:
        if len(swept) < 3:
            path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
            monkeypatch.setattr(fcntl, "flock", real)
            assert sweep(tmp_path) == [path]
            monkeypatch.setattr(fcntl, "flock", flock)
            swept.append(path)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with StagingDirectory(tmp_path) as directory:
        assert len(swept) == 3
        assert directory.path.exists()
        assert sweep(tmp_path) == []


def test_many_processes_that_start_and_sweep_at_once_get_on(tmp_path: Path) -> None:
    then = """
for _ in range(100):
    with StagingDirectory(sys.argv[1]) as another:
        (another.path / "file").write_bytes(b"x")
        assert (another.path / "file").read_bytes() == b"x"
assert (directory.path / "file").exists()
"""
    children = [_child(tmp_path, then) for _ in range(4)]
    assert [_end(child) for child in children] == [0] * 4
    assert list(tmp_path.iterdir()) == []


def test_a_staged_file_has_no_name_so_that_nothing_can_leave_it_behind(tmp_path: Path) -> None:
    with StagingDirectory(tmp_path) as directory, directory.file() as file:
        file.write(b"data")
        file.seek(0)
        assert file.read() == b"data"
        assert list(directory.path.iterdir()) == []


@pytest.mark.parametrize("root", ["missing", "file"])
def test_an_unusable_root_is_an_error_that_names_it(tmp_path: Path, root: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    why = re.escape(str(tmp_path / root)) + ".*staging_dir or else TMPDIR.*pass another directory"
    with pytest.raises(StoreUnavailable, match=why):
        StagingDirectory(tmp_path / root)


def test_too_little_space_is_said_with_how_much_is_free(tmp_path: Path) -> None:
    with StagingDirectory(tmp_path) as directory:
        directory.needs(shutil.disk_usage(tmp_path).free // 2)
        with pytest.raises(StoreUnavailable, match=r"Expected [\d,.]+ MB.*Received: [\d,.]+ MB.*staging_dir"):
            directory.needs(2 * shutil.disk_usage(tmp_path).total)
