"""Checkpoints in a bucket: uploaded whole, and found by a machine with an empty run folder."""

import itertools
import os
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from psutil import process_iter

from imagenet_opt.callbacks.checkpoint import Checkpoint
from imagenet_opt.errors import CheckpointError, CheckpointNotFound, ConfigError, StorageFailed
from imagenet_opt.object_storage import ObjectStorage
from imagenet_opt.run.checkpoint import mirror, restore
from imagenet_opt.run.checkpoint.names import step_file
from imagenet_opt.run.checkpoint.uploads import CheckpointUploads
from imagenet_opt.run.checkpoint.writer import CheckpointWriter, HostCopy
from imagenet_opt.training.build_run import build_run
from tests.callbacks.conftest import Project
from tests.config.configs import tiny
from tests.faulty_proxy import FaultyProxy
from tests.object_server import client, objects, put
from tests.processes import on_ranks, run_script
from tests.run.checkpoint.test_writer import names, state, step_of

pytestmark = pytest.mark.slow


def save(
    folder: Path, url: str | None, *steps: int, best: int | None = None, keep: int = 2, replaced: Any = ()
) -> CheckpointUploads:
    """Write and upload a checkpoint of each of `steps`, one after the other. None: write only."""
    folder.mkdir(parents=True, exist_ok=True)
    uploads = CheckpointUploads(url or "s3://none", folder, keep=keep, replaced=replaced)
    writer = CheckpointWriter(folder, keep=keep, then=uploads.add if url else lambda step: None)
    for step in steps:
        (folder / "metrics.csv").write_text("step,epoch\n" + "".join(f"{row},0\n" for row in range(step)))
        writer.write(step, HostCopy(state(step)), is_best=step == best)
        writer.wait()
        uploads.wait()
    return uploads


def find(folder: Path, url: str) -> Path | None:
    folder.mkdir(exist_ok=True)
    return restore.find("auto", folder, url=url).path


def test_a_mirror_holds_the_newest_the_best_and_the_rows_and_names_them(bucket: str, tmp_path: Path) -> None:
    save(tmp_path, f"{bucket}/a/run", 1, 2, 3, best=1)
    found = objects(bucket)
    local = ("checkpoints/step_00000002.ckpt", "checkpoints/step_00000003.ckpt", "best.ckpt", "metrics.csv")
    assert set(found) == {f"a/run/{name}" for name in local}
    for name in local:
        assert found[f"a/run/{name}"] == (tmp_path / name).read_bytes()
    assert not [name for name in names(tmp_path) if name.endswith(".new")]


def test_a_run_that_goes_back_replaces_the_later_steps_of_the_mirror_and_says_so(
    bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path / "earlier", bucket, 12, 30)
    path = str(tmp_path / "earlier/checkpoints/step_00000012.ckpt")
    found = restore.find(path, tmp_path / "run", url=bucket)
    assert f"resume_from={path}: this run replaces the later" in caplog.text
    for command, goes_on in (("auto", True), (path, False)):  # as the checkpoint of a lost machine says
        assert restore.has_begun({"resume_from": command}, tmp_path / "new", url=bucket) is goes_on
    save(tmp_path / "run", bucket, 20, replaced=found.replaced)
    left = ["checkpoints/step_00000012.ckpt", "checkpoints/step_00000020.ckpt", "metrics.csv"]
    assert sorted(objects(bucket)) == left


def test_of_two_machines_with_one_mirror_the_further_is_left_alone(
    bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path / "b", bucket, 200)
    before = objects(bucket)
    save(tmp_path / "a", bucket, 150)
    assert "another run has written checkpoints/step_00000200.ckpt" in caplog.text
    assert objects(bucket) == before  # the rows too
    save(tmp_path / "a", bucket, 250)
    assert step_of(find(tmp_path / "new", bucket)) == 250


def test_an_upload_that_ends_at_any_request_leaves_the_newest_checkpoint_whole(
    bucket: str, proxy: FaultyProxy, tmp_path: Path
) -> None:
    save(tmp_path, None, 1, 2, 3, best=3)
    local = {step: step_file(tmp_path, step) for step in (2, 3)}
    shared: dict[str, Any] = {"others": [], "keep": 1, "replaced": []}
    for last in itertools.count():
        storage = ObjectStorage(f"{bucket}/{last}", mirror.KEY)
        mirror.upload(storage, name="checkpoints/step_00000002.ckpt", checkpoint=str(local[2]), best=None, **shared)
        begin = len(proxy.paths)
        proxy.fault = lambda number, path, end=begin + last: "403" * (number > end)  # type: ignore[misc]
        ended = False
        with suppress(StorageFailed):
            arguments = {"checkpoint": str(local[3]), "best": str(tmp_path / "best.ckpt")} | shared
            ended = mirror.upload(storage, name="checkpoints/step_00000003.ckpt", **arguments) is None
        proxy.fault = lambda number, path: ""
        found = objects(bucket)
        newest = max(step for step in local if f"{last}/checkpoints/step_{step:08d}.ckpt" in found)
        assert found[f"{last}/checkpoints/step_{newest:08d}.ckpt"] == local[newest].read_bytes()
        assert newest == 2 or found[f"{last}/best.ckpt"] == local[3].read_bytes()
        if ended:
            break
    assert newest == 3 and last >= 4


def test_a_mirror_whose_objects_cannot_be_removed_keeps_old_checkpoints_and_says_so(
    bucket: str, proxy: FaultyProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proxy.fault = lambda number, path: "403" * path.endswith("?delete")
    save(tmp_path, bucket, 1, 2, keep=1)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "step_00000001.ckpt" in warning and "403" in warning
    assert {"checkpoints/step_00000001.ckpt", "checkpoints/step_00000002.ckpt"} < objects(bucket).keys()


def test_a_failed_upload_is_one_warning_and_the_next_save_tries_again(
    bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client().delete_bucket(Bucket=bucket.removeprefix("s3://"))
    uploads = save(tmp_path, bucket, 1)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"step 1 is not in callbacks.checkpoint.mirror={bucket}: " in warning and "NoSuchBucket" in warning
    uploads.finish(60)
    assert caplog.records[-1].levelname == "ERROR" and f"{bucket} lacks step 1" in caplog.text
    client().create_bucket(Bucket=bucket.removeprefix("s3://"))
    save(tmp_path, bucket, 2)
    assert "checkpoints/step_00000002.ckpt" in objects(bucket)


def test_only_the_user_can_write_the_compiled_code_of_a_mirror(bucket: str, tmp_path: Path) -> None:
    lost, new = tmp_path / "lost", tmp_path / "new"
    lost.mkdir()
    (lost / "compiled_code.bin").write_bytes(b"code")
    (lost / "wandb_id.txt").write_text("abc\n")
    save(lost, bucket, 4)
    before = os.umask(0o002)
    try:
        restore.find("auto", new, url=bucket)
    finally:
        os.umask(before)
    assert (new / "wandb_id.txt").read_text() == "abc\n"
    code = new / "compiled_code.bin"
    assert code.read_bytes() == b"code" and code.stat().st_mode & 0o777 == 0o600


def test_the_newest_of_run_folder_and_mirror_is_used(bucket: str, tmp_path: Path) -> None:
    save(tmp_path / "other", bucket, 5)
    for step, is_downloaded in ((3, True), (5, False)):
        save(run := tmp_path / f"run{step}", None, step)
        before = step_file(run, step).stat().st_mtime_ns
        found = restore.find("auto", run, url=bucket)
        assert (step_of(found.path), found.source is not None) == (5, is_downloaded)
        assert step_file(run, step).stat().st_mtime_ns == before


def damage(url: str, name: str) -> None:
    content = bytearray(objects(url)[name])
    content[len(content) // 2] ^= 1
    put(f"{url}/{name}", bytes(content))


def test_a_damaged_newest_object_is_skipped_and_replaced(
    bucket: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(tmp_path / "lost", bucket, 4, 5)
    damage(bucket, "checkpoints/step_00000005.ckpt")
    (tmp_path / "new").mkdir()
    found = restore.find("auto", tmp_path / "new", url=bucket)
    assert step_of(found.path) == step_of(tmp_path / "new/last.ckpt") == 4
    (warning,) = caplog.messages
    assert f"{bucket}/checkpoints/step_00000005.ckpt" in warning
    save(tmp_path / "new", bucket, 4, replaced=found.replaced)
    assert [name for name in objects(bucket) if "step" in name] == ["checkpoints/step_00000004.ckpt"]


def test_the_best_is_better_than_none_and_a_new_run_does_not_begin_silently(bucket: str, tmp_path: Path) -> None:
    save(tmp_path / "lost", bucket, 4, best=4)
    damage(bucket, "checkpoints/step_00000004.ckpt")
    assert step_of(find(tmp_path / "first", bucket)) == 4
    damage(bucket, "best.ckpt")
    with pytest.raises(CheckpointError, match=rf"{bucket}.*resume_from=null"):
        find(tmp_path / "second", bucket)
    assert names(tmp_path / "second") == []


def test_a_command_reads_a_checkpoint_of_a_mirror(bucket: str, tmp_path: Path) -> None:
    save(tmp_path, bucket, 4)
    with restore.local_checkpoint(f"{bucket}/checkpoints/step_00000004.ckpt") as (file, place):
        assert step_of(file) == 4 and place.startswith(bucket)
    assert not file.exists()
    for url, error in ((f"{bucket}/best.ckpt", CheckpointNotFound), (bucket, ConfigError)):
        with pytest.raises(error, match=r"ckpt"), restore.local_checkpoint(url):
            pass


def test_all_processes_of_a_run_find_the_same_checkpoint(bucket: str, tmp_path: Path) -> None:
    save(tmp_path / "lost", bucket, 5)
    first, second = on_ranks(lambda rank: find(tmp_path / "new", bucket))
    assert first == second and step_of(first) == 5


ALONE = """
import os, sys
from pathlib import Path
from imagenet_opt.run.checkpoint.uploads import CheckpointUploads
from tests.run.checkpoint.test_mirror import find, save

folder, url, silent = Path(sys.argv[1]), *sys.argv[2:]
save(folder / "a", None, 1)
print(find(folder / "b", url), "obstore" in sys.modules)
os.environ["AWS_ENDPOINT_URL"] = silent
uploads = CheckpointUploads(f"{url}/hanging", folder / "a", keep=1)
uploads.add(1)
uploads.finish(0.2)
"""


def test_the_training_process_opens_no_storage_and_a_storage_that_does_not_answer_holds_no_run_back(
    bucket: str, tmp_path: Path
) -> None:
    """A process that opens no storage may fork workers that do. No upload outlives its run."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        arguments = [str(tmp_path), bucket, f"http://127.0.0.1:{silent.getsockname()[1]}"]
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = run_script(ALONE, arguments, cwd=tmp_path, environment=os.environ | paths)
        assert (done.returncode, done.stdout) == (0, "None False\n"), done.stderr
        assert f"mirror={bucket}/hanging lacks step 1 " in done.stderr.splitlines()[-1]
        deadline = time.monotonic() + 60
        while any(f"{bucket}/hanging" in " ".join(each.info["cmdline"] or ()) for each in process_iter(["cmdline"])):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_jobs_of_a_sweep_have_mirrors_of_their_own(
    bucket: str, images_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGENET_OPT_SWEEP_JOB", "1")
    run = build_run(tiny(tmp_path / "sweep_1", images_root, f"callbacks.checkpoint.mirror={bucket}/"))
    assert run.trainer.checkpoint_callback.mirror == f"{bucket}/sweep_1/run"


def test_a_resumed_run_uploads_the_checkpoint_that_the_mirror_lacks_also_if_nothing_is_left_to_train(
    bucket: str, tmp_path: Path
) -> None:
    Project().fit(Checkpoint(folder=str(tmp_path)), max_epochs=1)
    content, again = (tmp_path / "last.ckpt").read_bytes(), Checkpoint(folder=str(tmp_path), mirror=bucket)
    Project().fit(again, ckpt_path=tmp_path / "last.ckpt", max_epochs=1)
    assert objects(bucket)["checkpoints/step_00000010.ckpt"] == content


def test_a_mirror_that_takes_no_checkpoint_is_refused_before_training(
    bucket: str, proxy: FaultyProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(url: str, error: type[Exception], reason: str) -> None:
        project = Project()
        with pytest.raises(error) as caught:
            project.fit(Checkpoint(folder=str(tmp_path), mirror=url))
        assert project.trainer.global_step == 0
        assert all(word in str(caught.value) for word in (url, "callbacks.checkpoint.mirror", reason))

    refused(f"{bucket}-none/run", StorageFailed, "")
    proxy.fault = lambda number, path: "403"
    refused(bucket, StorageFailed, "403")
    (tmp_path / "obstore.py").write_text("raise ModuleNotFoundError(name='obstore')")
    monkeypatch.syspath_prepend(tmp_path)
    refused(bucket, ConfigError, "pip install")
