"""Runs the due GPU jobs that fit into the time: `python suites/gpu/run.py OUT --seconds 3600`.

jobs.yaml beside this file has the jobs, the most valuable first; results/ has a file for each job that was run, which
git tracks. A job is due on a card (its name) until a run of its version has ended well there, or was cut and left
numbers, or two have failed. OUT gets results.json after each job, and kept.tgz with logs and other small files at the
end. The same command resumes. A job is a shell command, which runs in the root of the repository with these variables:

    WORK  a folder that stays on the machine; prepare.py fills it
    DATA  overrides of train.py for WORK/images
    KEEP  an empty folder. Its result.json has the numbers of the job; without it, those of the record.json of each
          folder in it
    QUARTER_FEWER_CPUS  three quarters of the CPUs
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MOST_TRIES, SPARE_SECONDS, TAIL, LARGEST_KEPT = 2, 20, 30, 4 * 2**20
CUT = 124  # status of a job that its limit ended, as timeout(1) has it
DATA = (
    "data.root={work}/images data.train_folder=. data.val_folder=. data.num_workers=auto logger=csv "
    "model.num_classes=1000"
)
Facts = dict[str, Any]


def read(file: Path) -> Facts:
    return json.loads(file.read_text()) if file.exists() else {}


def known(results: Path) -> Facts:
    """All results in a folder."""
    return {name: result for file in sorted(results.glob("*.json")) for name, result in read(file).items()}


def key(job: Facts, machine: Facts) -> str:
    return f"{job['name']}, version {job.get('version', 1)}, {machine['card']}"


def is_done(result: Facts) -> bool:
    return result["status"] == 0 or (result["status"] == CUT and bool(result["numbers"]))


def why_not(job: Facts, last: Facts) -> str | None:
    """Why a job is not due; None if it is due. last: its latest result."""
    if last and is_done(last):
        return "done"
    if last and last["tries"] >= MOST_TRIES:
        return f"failed {last['tries']} times"
    missing = [path for path in job.get("needs", ()) if not Path(os.path.expandvars(path)).exists()]
    return f"{', '.join(missing)} is absent" if missing else None


def run(job: Facts, keep: Path) -> Facts:
    """Status, seconds, numbers and last lines of a job. Its processes end with it."""
    shutil.rmtree(keep, ignore_errors=True)
    keep.mkdir(parents=True)
    environment = os.environ | {"KEEP": str(keep), "JOB_SECONDS": str(job["seconds"])}
    command = ["bash", "-o", "pipefail", "-c", job["command"]]
    began, status = time.perf_counter(), CUT
    with (keep / "log.txt").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(job["seconds"])
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(8)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    numbers: Facts = {}
    with suppress(json.JSONDecodeError):  # of a job that was cut while it wrote
        numbers = read(keep / "result.json")
    summaries = {file.parent.name: read(file)["numbers"] for file in sorted(keep.glob("*/record.json"))}
    return {
        "status": status,
        "seconds": round(time.perf_counter() - began, 1),
        "numbers": numbers or summaries,
        "tail": (keep / "log.txt").read_text(errors="replace").splitlines()[-TAIL:],
    }


def prepared(work: Path, words: list[str]) -> Facts:
    """Facts about the machine, from prepare.py, which makes the data ready. Sets the variables of the jobs."""
    work.mkdir(mode=0o700, parents=True, exist_ok=True)
    if work.stat().st_uid != os.getuid():
        sys.exit(f"{work} belongs to another user, whose compiled code would run here; give another folder with --work")
    old = os.environ.get("PYTHONPATH", "")
    os.environ |= {"WORK": str(work), "DATA": DATA.format(work=work), "TORCHINDUCTOR_CACHE_DIR": f"{work}/compiled"}
    os.environ |= {"PYTHONPATH": f"{ROOT}/src:{ROOT}:{old}".rstrip(":"), "PYTHONUNBUFFERED": "1"}
    os.environ |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_WAIT_POLICY": "PASSIVE"}
    asked = subprocess.run([sys.executable, HERE / "prepare.py", work, *words], stdout=subprocess.PIPE, check=False)
    if asked.returncode:
        sys.exit("the machine is not ready; no job was run")
    machine: Facts = json.loads(asked.stdout)
    os.environ["QUARTER_FEWER_CPUS"] = str(max(1, machine["cpus"] * 3 // 4))
    return machine


def run_due(jobs: list[Facts], before: Facts, file: Path, machine: Facts, work: Path, *, end: float) -> bool:
    """Whether all jobs that ran ended well. before: known results; file: for all results; end: of time.perf_counter."""
    is_well = True
    # What failed once comes last: a slot must not spend its time on the same failure again.
    for job in sorted(jobs, key=lambda job: before.get(key(job, machine), {}).get("tries", 0)):
        last, left = before.get(name := key(job, machine), {}), end - time.perf_counter()
        too_long = f"{job['seconds']} s do not fit into {max(0, left):.0f} s" if job["seconds"] > left else None
        if why := why_not(job, last) or too_long:
            print(f"{job['name']}: not run, {why}")
            continue
        print(f"{job['name']}: {job['purpose']} (at most {job['seconds']} s)", flush=True)
        result = {"job": job, "machine": machine, "date": datetime.now(UTC).isoformat(timespec="minutes")}
        result |= run(job, work / "kept" / job["name"]) | {"tries": last.get("tries", 0) + 1}
        file.write_text(json.dumps(read(file) | {name: result}, indent=1) + "\n")
        print(f"{job['name']}: status {result['status']}, {result['seconds']} s", *result["tail"][-1:], flush=True)
        is_well &= is_done(result)
    return is_well


def pack(folder: Path, file: Path, largest: float = LARGEST_KEPT) -> None:
    """Logs, metrics and other files of less than `largest` bytes."""
    with tarfile.open(file, "w:gz") as archive:
        for one in sorted(folder.rglob("*")):
            if one.is_file() and one.suffix not in (".ckpt", ".bin") and one.stat().st_size < largest:
                archive.add(one, one.relative_to(folder))


def take(file: Path, done: Path) -> None:
    """Put the results of an OUT into the folder of results that git tracks."""
    for name, result in read(file).items():
        if result["machine"]["capability"] == "none":
            sys.exit(f"{file} is from a machine without a GPU")
        own = done / f"{result['job']['name']}.json"
        own.write_text(json.dumps(read(own) | {name: result}, indent=1) + "\n")


def main() -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--seconds", type=float, default=3600, help="for all jobs together; default: 3600")
    parser.add_argument("--only", metavar="NAMES", help="these jobs, with commas between, also if they are done")
    parser.add_argument("--images", metavar="FOLDER", help="class folders of ImageNet's JPEGs; default: drawn images")
    parser.add_argument("--cifar10", metavar="FOLDER", help="train/ and val/ with class folders of JPEGs")
    parser.add_argument("--imagenette", metavar="FOLDER", help="the same")
    parser.add_argument("--code", action="store_true", help="add the compiled code, for another machine like this")
    parser.add_argument("--commit", help="of the code, where git cannot tell")
    parser.add_argument("--work", type=Path, help="default: imagenet-opt-gpu-UID in the folder for temporary files")
    parser.add_argument("--jobs", type=Path, default=HERE / "jobs.yaml", help="another file of jobs")
    parser.add_argument("--take", action="store_true", help="put the results of OUT into suites/gpu/results instead")
    given = parser.parse_args()
    jobs, done, out = yaml.safe_load(given.jobs.read_text()), given.jobs.parent / "results", given.out.absolute()
    if given.take:
        return take(out / "results.json", done)
    if given.only and (unknown := set(given.only.split(",")) - {job["name"] for job in jobs}):
        parser.error(f"--only: no job {', '.join(sorted(unknown))}")
    before = {} if given.only else known(done) | read(out / "results.json")
    jobs = [job for job in jobs if not given.only or job["name"] in given.only.split(",")]
    data = {name: vars(given)[name] for name in ("images", "cifar10", "imagenette")}
    work = (given.work or Path(tempfile.gettempdir(), f"imagenet-opt-gpu-{os.getuid()}")).absolute()
    machine = prepared(work, [f"--{name}={Path(folder).resolve()}" for name, folder in data.items() if folder])
    machine |= {"commit": given.commit} if given.commit else {}
    out.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    end = began + given.seconds - SPARE_SECONDS
    is_well = run_due(jobs, before, out / "results.json", machine, work, end=end)
    pack(work / "kept", out / "kept.tgz")
    if given.code:
        pack(work / "compiled", out / "inductor.tgz", inf)
    print(json.dumps(machine))
    sys.exit(not is_well)


if __name__ == "__main__":
    main()
