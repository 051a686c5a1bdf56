"""Every error that a user can cause: one tree, with the subclasses of each branch in its line.

ImagenetOptError
├── ConfigError: BatchTooLarge
├── DataError: DatasetNotFound, EmptyClass, ClassMismatch, BadSample, TooManyBadSamples, ShardMismatch, PackStopped,
│              ReadTimeout, StorageFailed, WorkerDied
├── ModelError: UnknownModel
├── CheckpointError: CheckpointNotFound, CheckpointMismatch
├── TrainingError: NonFiniteLoss, RanksDiffer, OutOfMemory
└── RunFolderError

Preempted is no error: a signal or a spot notice stopped a run that can resume, and no `except Exception` catches it.

A message says what was found, what was expected and what to do, and names the config key. The command line prints the
message as one line, without a traceback, and exits with status 2 (Preempted: 75).
"""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

Name = str | Callable[[], str]
"""A name for an error, or what makes the name: an image needs none as long as nothing fails."""
_ERROR_LINE = re.compile(r"(\[rank\d+\]:\s*)?(?P<module>(\w+\.)*)(?P<name>[A-Z]\w*)(?P<message>(:\s.*)?)$")
_ERROR_ENDINGS = ("Error", "Exception", "Interrupt", "Exit")


def named(name: Name) -> str:
    return name if isinstance(name, str) else name()


def printable(text: str) -> str:
    """`text` as one line for terminals: line ends, control characters and bytes that are no UTF-8 are escaped.

    Use it where names from outside, such as file names, are printed. Errors and log records of this package are
    escaped when they are made.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode().replace(r"\udc", r"\x") for c in text)


def one_line(text: str) -> str:
    """A message of another library, of perhaps several lines, as one printable line."""
    return printable(" ".join(line.strip() for line in text.splitlines() if line.strip()))


class ImagenetOptError(Exception):
    """Root of all errors that a user can fix. The message becomes one printable line, whatever names are in it."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*(printable(part) if isinstance(part, str) else part for part in arguments))


class ConfigError(ImagenetOptError):
    """An override or a value that cannot be used. Correct the key that the message names; docs/reference/keys.md has
    all."""


class BatchTooLarge(ConfigError):
    """The data set has fewer samples than one global batch. Lower data.batch_size, or data.global_batch_size."""


class DataError(ImagenetOptError):
    """Something is wrong with the data set."""


class DatasetNotFound(DataError):
    """There is no data set where data.root points. Expected: train/<class>/*.JPEG and val/<class>/*.JPEG, or shards."""


class EmptyClass(DataError):
    """A class folder holds no images. Remove the folder, or put images there; only val/ may lack a class."""


class ClassMismatch(DataError):
    """val/ has classes that train/ does not have. Sort the validation images into folders named as those of
    train/."""


class BadSample(DataError):
    """A file that cannot be read, or that no decoder opens. Restore or remove it; data.on_bad_sample=skip goes on
    without."""


class TooManyBadSamples(DataError):
    """More bad samples than data.max_bad_fraction allows. `imagenet-opt check` lists all bad files."""


class ShardMismatch(DataError):
    """Packed shards differ from their index, or some are missing. Run the same `imagenet-opt pack` again to repair
    them."""


class PackStopped(DataError):
    """A full disk or a killed process ended a pack. Make room, and run the same command again; it resumes."""


class ReadTimeout(DataError):
    """The storage does not answer. Check that `ls` works on the mount, or raise data.read_timeout."""


class StorageFailed(DataError):
    """The storage as a whole fails, not one file of it. Repair the mount, and run the same command again; it
    resumes."""


class StorageForbidden(StorageFailed):
    """The identity of this run has no right to an object, or to the whole storage (403). Give it the right."""


class WorkerDied(DataError):
    """A loader process was killed, or cannot hand over its batches, usually because memory or /dev/shm is full. Lower
    data.num_workers, data.prefetch_factor or data.batch_size."""


class ModelError(ImagenetOptError):
    """The network cannot be built with this configuration. Change the model.* key that the message names."""


class UnknownModel(ModelError):
    """timm has no model of that name. The message has similar names."""


class CheckpointError(ImagenetOptError):
    """A checkpoint cannot be used. Choose an earlier one with resume_from=PATH, or start a new run with
    resume_from=null."""


class CheckpointNotFound(CheckpointError):
    """resume_from names a file that does not exist. Name a run folder or a .ckpt file."""


class CheckpointMismatch(CheckpointError):
    """The checkpoint is of another architecture, number of classes, recipe, or order of samples. Set the keys as in the
    run that wrote the checkpoint, or start a new run in another folder."""


class TrainingError(ImagenetOptError):
    """Training cannot continue. The message has the cause."""


class NonFiniteLoss(TrainingError):
    """The loss is NaN or infinite. Lower optimizer.lr, or set model.max_grad_norm; the batch is kept in a file."""


class RanksDiffer(TrainingError):
    """The processes of a run found different data or checkpoints. Give all machines the same data and run folder."""


class OutOfMemory(TrainingError):
    """A step does not fit into the device's memory. Lower model.micro_batch_size or data.batch_size."""


class Preempted(BaseException):
    """A signal or a spot notice stopped the run; the same command resumes with it. Exit status 75 (EX_TEMPFAIL).

    Like KeyboardInterrupt, `except Exception` does not catch it, because a signal can arrive anywhere.
    """


class RunFolderError(ImagenetOptError):
    """The run folder cannot be written, or another process trains in it. Choose another with hydra.run.dir=FOLDER."""


@contextmanager
def own_names(**names: str) -> Iterator[None]:
    """Let errors name the arguments of a function, not the keys of a configuration; commands to copy keep the keys.

    names: the argument for a key below `data.`, if it has another name.
    """
    keys = r"(?<![\w/.'])(?<!pack )data\.(train_folder(?:,| and) data\.val_folder|\w+)=?"
    try:
        yield
    except ImagenetOptError as error:
        error.args = (
            re.sub(keys, lambda key: f"{names.get(key[1], 'split' if '_folder' in key[1] else key[1])}=", str(error)),
        )
        raise


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """The hint for an unknown name: the most similar known name."""
    similar = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"did you mean {similar[0]}?" if similar else otherwise


def first_line(error: BaseException) -> str:
    """First line of the error's message; the name of the error's class if the message is empty. For an error of
    torch.compile, that of its cause; for one of a DataLoader's worker, that of the worker."""
    cause = _cause(error)
    name, message = type(cause).__name__, str(cause).strip()
    if message.startswith(f"Caught {name} in ") and (line := last_error_line(message)):
        message = line.removeprefix(f"{name}:").strip()
    return (message or name).splitlines()[0]


def named_first_line(error: BaseException) -> str:
    """The error's class and the first line of its message; for an error of torch.compile, those of its cause."""
    name, line = type(_cause(error)).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"


def _cause(error: BaseException) -> BaseException:
    """The error that torch.compile wraps: its own first line names only the backend."""
    return getattr(error, "inner_exception", error)


def last_error_line(output: str) -> str | None:
    """The last line of a process's output that reports an error, without rank and module: "RuntimeError: ...".

    A line reports an error if it begins with an error of this project, a name that ends in Error, Exception, Interrupt
    or Exit, or a class name after a module name.
    """
    errors_here = {name for name, value in globals().items() if isinstance(value, type)}
    for line in reversed(output.splitlines()):
        match = _ERROR_LINE.match(line.strip())
        if match and (match["module"] or match["name"] in errors_here or match["name"].endswith(_ERROR_ENDINGS)):
            return match["name"] + match["message"]
    return None
