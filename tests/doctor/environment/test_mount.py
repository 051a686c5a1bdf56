"""Lines of /proc/mounts from real machines."""

import pytest

from imagenet_opt.doctor.environment.mount import check_mount, check_options
from imagenet_opt.doctor.remedies import DataPlace
from imagenet_opt.machine import Mount

LUSTRE = "172.31.5.9@tcp:/abcdefgh /fsx lustre rw,noatime,flock,lazystatfs 0 0"
NFS = (
    "fs-1.efs.us-east-1.amazonaws.com:/ /data nfs4 rw,relatime,vers=4.1,rsize=1048576,wsize=1048576,namlen=255,hard,"
    "proto=tcp,timeo=600,retrans=2,sec=sys,clientaddr=10.0.0.5,local_lock=none,addr=10.0.0.9 0 0"
)
S3 = "mountpoint-s3 /s3 fuse rw,nosuid,nodev,noatime,user_id=0,group_id=0,default_permissions 0 0"
S3FS = "s3fs /s3 fuse.s3fs rw,nosuid,nodev,relatime,user_id=0,group_id=0 0 0"
RCLONE = "bucket:imagenet /s3 fuse.rclone ro,nosuid,nodev,relatime,user_id=1000,group_id=1000 0 0"
OVERLAY = "overlay / overlay rw,relatime,lowerdir=/l/A:/l/B,upperdir=/u,workdir=/w 0 0"
PACK = "imagenet-opt pack 'data.root=/data set' data.train_folder=. out=/local/disk/packed"
EXT4 = "/dev/mapper/vg-nfs / ext4 rw,relatime,discard 0 0"


def mount(line: str) -> Mount:
    device, point, kind, options, *_ = line.split()
    return Mount(point, kind, device, tuple(options.split(",")))


@pytest.mark.parametrize(
    ("line", "fired", "words"),
    [
        (LUSTRE, False, "asks a server"),
        (NFS, False, "asks a server"),
        (S3, True, "object storage"),
        (S3FS, True, "object storage"),
        (RCLONE, True, "object storage"),
        ("pi@host:/d /d fuse.sshfs rw 0 0", False, "asks a server"),
        ("bucket /d fuse rw 0 0", False, "a program, not the kernel"),
        (OVERLAY, False, "container"),
        (EXT4, False, "a disk of this machine"),
        ("none /x squidfs rw 0 0", False, "unknown kind"),
    ],
)
def test_each_kind_of_storage_is_known(line: str, fired: bool, words: str) -> None:
    finding = check_mount(mount(line), DataPlace("/data set", train_folder="."))
    assert finding.fired is fired and words in finding.evidence
    assert finding.commands == ((PACK,) if fired else ())


def test_shards_are_copied_and_not_packed_again() -> None:
    finding = check_mount(mount(S3), DataPlace("/s3/packed", packed=True))
    assert finding.commands == ("cp -r /s3/packed /local/disk/packed",)


def test_an_ebs_volume_does_not_count_as_a_local_disk() -> None:
    finding = check_mount(mount(EXT4), DataPlace("/data"), model="Amazon Elastic Block Store")
    assert "EBS volume" in finding.evidence and "a disk of this machine" not in finding.evidence


def test_without_a_mount_nothing_is_judged() -> None:
    assert check_mount(None, DataPlace("/data")).fired is None and check_options(None).fired is None


@pytest.mark.parametrize(
    ("line", "better"),
    [
        (NFS, "nconnect=16"),
        (NFS.replace("rsize=1048576", "rsize=65536,nconnect=8"), "rsize=1048576"),
        (NFS.replace("hard", "sync,noac,lookupcache=none,nconnect=8"), "async,ac,lookupcache=all"),
        (LUSTRE.replace("noatime", "sync"), "async,noatime"),
        (EXT4.replace("relatime", "nodev"), "noatime"),
    ],
)
def test_slow_options_are_named_with_better_ones(line: str, better: str) -> None:
    finding = check_options(mount(line))
    assert finding.fired and f" -o {better} " in finding.commands[0].replace("remount,", "")


@pytest.mark.parametrize(
    "line", [LUSTRE, EXT4, S3, NFS.replace("hard", "nconnect=16"), NFS.replace("proto=tcp", "proto=rdma"), S3FS]
)
def test_good_options_are_left_alone(line: str) -> None:
    assert check_options(mount(line)).fired is False
