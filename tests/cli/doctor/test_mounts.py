"""Whether a directory outlives the machine, by the list of mounts of many machines and pods."""

from __future__ import annotations

from pathlib import Path

import pytest

from keras_preempt.cli.doctor import mounts
from keras_preempt.cli.doctor.mounts import Fate, fate_of, mount_of, parse_mountinfo
from keras_preempt.process.environment import PLATFORM
from tests.cli.doctor.doctored import doctor

LAPTOP = """\
25 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
26 25 0:5 / /dev rw,nosuid shared:2 - devtmpfs udev rw
30 25 0:25 / /run rw,nosuid shared:5 - tmpfs tmpfs rw,size=800k
40 25 259:3 / /home rw,relatime shared:20 - xfs /dev/nvme0n1p3 rw
41 25 8:1 / /media/my\\040disk rw shared:21 - fuseblk /dev/sda1 rw
42 25 0:50 / /sshfs rw - fuse.sshfs me@host: rw
"""

SLURM_NODE = """\
22 1 253:0 / / rw,relatime - xfs /dev/mapper/rl-root rw
35 22 0:30 / /tmp rw - tmpfs tmpfs rw
36 22 253:2 / /local rw - xfs /dev/mapper/rl-local rw
37 22 0:41 / /home rw - nfs4 server:/home rw,vers=4.2
38 22 0:42 / /scratch rw - lustre 10.0.0.1@o2ib:/fs rw
39 22 0:43 / /gpfs rw - gpfs fs1 rw
40 22 0:44 / /beegfs rw - beegfs beegfs_nodev rw
41 22 253:0 /var/tmp/job.7 /var/tmp rw - xfs /dev/mapper/rl-root rw
42 22 0:45 / /ceph rw - ceph 10.0.0.2:/ rw
43 22 0:46 / /ceph-fuse rw - fuse.ceph-fuse ceph-fuse rw
"""

CLOUD_VM = """\
20 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
21 20 8:16 / /mnt/disk rw - ext4 /dev/sdb rw
22 20 259:0 / /mnt/ssd rw - ext4 /dev/nvme0n1 rw
23 20 8:3 / /data rw - ext4 /dev/sda3 rw
24 20 0:50 / /mnt/bucket rw - fuse.gcsfuse my-bucket rw
25 20 0:51 / /mnt/s3 rw - fuse mountpoint-s3 rw
26 20 0:52 / /mnt/efs rw - nfs4 fs-1.efs.us-east-1.amazonaws.com:/ rw
27 20 0:53 / /mnt/smb rw - cifs //host/share rw
28 20 0:54 / /mnt/host rw - virtiofs share rw
"""

POD = """\
910 780 0:300 / / rw,relatime - overlay overlay rw,lowerdir=/a,upperdir=/b
911 910 0:301 / /proc rw - proc proc rw
912 910 0:302 / /dev rw - tmpfs tmpfs rw,size=65536k
913 912 0:303 / /dev/shm rw - tmpfs shm rw,size=65536k
914 910 8:1 /var/lib/kubelet/pods/1/etc-hosts /etc/hosts rw - ext4 /dev/sda1 rw
915 910 8:1 /var/lib/kubelet/pods/1/volumes/kubernetes.io~empty-dir/work /work rw - ext4 /dev/sda1 rw
916 910 0:304 / /memory rw - tmpfs tmpfs rw
917 910 8:1 /srv/data /host-path rw - ext4 /dev/sda1 rw
918 910 8:32 / /claim rw - ext4 /dev/sdc rw
919 910 0:305 / /shared rw - nfs4 10.0.0.3:/share rw
920 910 9:0 /kubelet/pods/1/volumes/kubernetes.io~empty-dir/fast /fast rw - ext4 /dev/md0 rw
"""

SANDBOX = """\
1 0 0:1 / / rw - 9p none rw,trans=fd
2 1 0:2 / /claim rw - 9p none rw,trans=fd
"""

BTRFS = """\
30 1 0:28 /@ / rw - btrfs /dev/vda2 rw,subvol=/@
31 30 0:28 /@home /home rw - btrfs /dev/vda2 rw,subvol=/@home
"""

ROOTLESS = "500 499 0:90 / / rw - fuse.fuse-overlayfs fuse-overlayfs rw\n"

STACKED = """\
20 1 8:1 / / rw - ext4 /dev/sda1 rw
21 20 0:40 / /a/b rw - nfs4 server:/b rw
22 20 0:41 / /a rw - tmpfs tmpfs rw
23 22 0:42 / /a/c rw - nfs4 server:/c rw
24 23 0:43 / /a/c rw - lustre fs rw
"""


@pytest.mark.parametrize(
    ("text", "path", "kind", "fate"),
    [
        (LAPTOP, "/srv/run", "ext4", Fate.MACHINE),
        (LAPTOP, "/home/me/run", "xfs", Fate.MACHINE),
        (LAPTOP, "/homeless/run", "ext4", Fate.MACHINE),
        (LAPTOP, "/run/user/run", "tmpfs", Fate.MEMORY),
        (LAPTOP, "/media/my disk/run", "fuseblk", Fate.UNKNOWN),
        (LAPTOP, "/sshfs/run", "fuse.sshfs", Fate.STAYS),
        (SLURM_NODE, "/opt/run", "xfs", Fate.MACHINE),
        (SLURM_NODE, "/tmp/run", "tmpfs", Fate.MEMORY),
        (SLURM_NODE, "/var/tmp/run", "xfs", Fate.MACHINE),
        (SLURM_NODE, "/local/run", "xfs", Fate.UNKNOWN),
        (SLURM_NODE, "/home/me/run", "nfs4", Fate.STAYS),
        (SLURM_NODE, "/scratch/run", "lustre", Fate.STAYS),
        (SLURM_NODE, "/gpfs/run", "gpfs", Fate.STAYS),
        (SLURM_NODE, "/beegfs", "beegfs", Fate.STAYS),
        (SLURM_NODE, "/ceph/run", "ceph", Fate.STAYS),
        (SLURM_NODE, "/ceph-fuse/run", "fuse.ceph-fuse", Fate.STAYS),
        (CLOUD_VM, "/home/me/run", "ext4", Fate.MACHINE),
        (CLOUD_VM, "/data/run", "ext4", Fate.MACHINE),
        (CLOUD_VM, "/mnt/disk/run", "ext4", Fate.UNKNOWN),
        (CLOUD_VM, "/mnt/ssd/run", "ext4", Fate.UNKNOWN),
        (CLOUD_VM, "/mnt/bucket/run", "fuse.gcsfuse", Fate.STAYS),
        (CLOUD_VM, "/mnt/s3/run", "fuse", Fate.STAYS),
        (CLOUD_VM, "/mnt/efs/run", "nfs4", Fate.STAYS),
        (CLOUD_VM, "/mnt/smb/run", "cifs", Fate.STAYS),
        (CLOUD_VM, "/mnt/host/run", "virtiofs", Fate.STAYS),
        (POD, "/app/run", "overlay", Fate.CONTAINER),
        (POD, "/dev/shm/run", "tmpfs", Fate.MEMORY),
        (POD, "/work/run", "ext4", Fate.POD),
        (POD, "/fast/run", "ext4", Fate.POD),
        (POD, "/memory/run", "tmpfs", Fate.MEMORY),
        (POD, "/host-path/run", "ext4", Fate.MACHINE),
        (POD, "/claim/run", "ext4", Fate.UNKNOWN),
        (POD, "/shared/run", "nfs4", Fate.STAYS),
        (SANDBOX, "/run", "9p", Fate.CONTAINER),
        (SANDBOX, "/claim/run", "9p", Fate.STAYS),
        (BTRFS, "/home/run", "btrfs", Fate.MACHINE),
        (ROOTLESS, "/run", "fuse.fuse-overlayfs", Fate.CONTAINER),
        (STACKED, "/a/b/run", "tmpfs", Fate.MEMORY),
        (STACKED, "/a/c/run", "lustre", Fate.STAYS),
    ],
)
def test_what_becomes_of_a_file_system_is_read_from_the_list_of_mounts(
    text: str, path: str, kind: str, fate: Fate
) -> None:
    listed = parse_mountinfo(text)
    mount = mount_of(path, listed)
    assert mount is not None
    assert (mount.kind, fate_of(mount, listed)) == (kind, fate)


@pytest.mark.parametrize(
    "text", ["", "nonsense", "1 2 3", "x y 0:1 / / rw - ext4 /dev/sda1 rw", "1 0 0:1 / /a rw -"]
)
def test_a_list_of_mounts_that_says_nothing_is_no_error(text: str) -> None:
    assert mount_of("/run", parse_mountinfo(text)) is None


def test_the_list_of_this_machine_has_a_mount_for_every_path(tmp_path: Path) -> None:
    found = mounts.mount_at(tmp_path.resolve())
    assert found is not None
    assert tmp_path.resolve().is_relative_to(found[0].point)


@pytest.mark.parametrize(
    ("platform", "here", "level", "says"),
    [
        *(
            (name, "ext4 /dev/sda1", "problem", "the machine's own disk")
            for name in ("gce-gpu", "aws", "azure")
        ),
        *(
            (name, "ext4 /dev/sda1", "problem", "the machine's own disk")
            for name in ("slurm", "kubernetes+aws")
        ),
        ("sagemaker", "ext4 /dev/sda1", "not checked", "CheckpointConfig"),
        ("generic", "ext4 /dev/sda1", "ok", "It has to be there"),
        *(
            (name, "overlay overlay", "problem", "container's own layer")
            for name in ("kubernetes", "slurm", "gce")
        ),
        ("generic", "overlay overlay", "warning", "container's own layer"),
        *((name, "tmpfs tmpfs", "problem", "is memory") for name in ("slurm", "generic")),
        *(
            (name, "ext4 /dev/sdb", "not checked", "a disk of its own (/dev/sdb)")
            for name in ("aws", "slurm")
        ),
        ("generic", "ext4 /dev/sdb", "ok", "It has to be there"),
        *((name, "nfs4 server:/home", "ok", "It has to be there") for name in ("slurm", "gce", "generic")),
    ],
)
def test_a_directory_that_goes_with_the_machine_is_a_problem_where_machines_are_taken_back(
    platform: str, here: str, level: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, listed = tmp_path / "run", tmp_path / "mountinfo"
    run.mkdir()
    listed.write_text(
        f"20 1 8:1 / / rw - ext4 /dev/sda1 rw\n21 20 8:1 / {tmp_path.resolve()} rw - {here} rw\n"
    )
    monkeypatch.setattr(mounts, "MOUNTINFO", str(listed))
    report = doctor(str(run), "--state-size", "1MB", env={PLATFORM: platform})
    found = report.findings["durable"]
    assert (found["level"], says in found["what"]) == (level, True), found
    assert report.problems == ({"durable"} if level == "problem" else set())
    assert bool(found["cure"]) == (level in ("problem", "warning"))
