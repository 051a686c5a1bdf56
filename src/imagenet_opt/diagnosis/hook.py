"""Takes over the first loop over a DataLoader that trains, in the process of an unchanged script or of a Trainer."""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import psutil

from imagenet_opt.atomic_file import write_atomically
from imagenet_opt.errors import named_first_line
from imagenet_opt.processes import end_with_parent

if TYPE_CHECKING:  # the script itself decides when torch is imported, and in which environment
    from imagenet_opt.diagnosis.loop import Examination

_DATALOADER = "torch.utils.data.dataloader"
_OWN = "imagenet_opt.diagnosis.worker"
_QUIET_BATCHES = 12
"""A loop with gradients switched on that never calls backward, step or no_grad is taken over after so many batches."""
_LAG = 2
"""Trainers take the next batch before the step on the last one."""


class Hook:
    """Watches the loops over DataLoaders, and gives one of them the batches of the experiments.

    ends_epochs: whether its epochs end as those of the loader do. Otherwise the first one gets all batches, so that a
    script with few epochs suffices. is_beyond: whether an epoch got more batches than the loader has. examination: of
    the loop that was taken over; None before.
    """

    def __init__(self, seconds: float, *, ends_epochs: bool = False) -> None:
        self.seconds, self.ends_epochs = seconds, ends_epochs
        self.num_loops, self.is_beyond = 0, False
        self.examination: Examination | None = None
        self._loader: Any = None
        self._batches: Iterator[Any] = iter(())

    def patch(self, module: ModuleType) -> Callable[[], None]:
        """Let each DataLoader give its iterators to this object. module: _DATALOADER. Returns a function to undo it."""
        original = module.DataLoader.__iter__

        def iterate(loader: Any) -> Any:
            return self._iterator(loader, original)

        module.DataLoader.__iter__ = iterate
        return lambda: setattr(module.DataLoader, "__iter__", original)

    def _iterator(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        if loader is self._loader and self.examination is not None:
            self.examination.interrupt()
            return _Watched(self, loader, None)
        if self.examination is not None or type(loader.dataset).__module__ == _OWN:
            return original(loader)
        self.num_loops += 1
        self.watch()
        return _Watched(self, loader, original(loader))

    def begin(self, loader: Any) -> None:
        from imagenet_opt.diagnosis.loop import Examination
        from imagenet_opt.private_api import drop_persistent_iterator

        drop_persistent_iterator(loader)
        self._loader = loader
        self.examination = Examination(loader, seconds=self.seconds, lag=_LAG, note=lambda: self.write("measuring"))
        self._batches = self.examination.batches()
        self.write("measuring")

    def next(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            self.end("")
        except Exception as error:
            self.end(f"the loader raised {named_first_line(error)}")

    def watch(self) -> None:
        """Called at the start of each loop before one is taken over."""

    def trains(self, loop: "_Watched") -> bool:
        """Whether a loop trains, and is to be taken over; called before each batch."""
        raise NotImplementedError

    def write(self, state: str) -> None:
        """Called after each experiment."""

    def end(self, reason: str) -> None:
        """Called after the experiments; must not return. reason: why they ended early; "" if they did not."""
        raise NotImplementedError


class _Watched:
    """The iterator of a DataLoader: until its loop is taken over, its own batches; then those of the experiments."""

    def __init__(self, hook: Hook, loader: Any, batches: Any) -> None:
        self._hook, self._loader, self._batches = hook, loader, batches
        self.num = self.num_quiet = 0

    def __iter__(self) -> "_Watched":
        return self

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        if self._batches is not None and self._hook.examination is None and self._hook.trains(self):
            self._batches = None
            self._hook.begin(self._loader)
        if self._batches is not None:
            self.num += 1
            return next(self._batches)
        assert self._hook.examination is not None
        length = self._hook.examination.measured.batches
        if length is not None and self.num >= length:
            if self._hook.ends_epochs:
                raise StopIteration
            self._hook.is_beyond = True
        self.num += 1
        return self._hook.next()


class _OfScript(Hook):
    """file: gets the state for the process that started this one, as JSON."""

    def __init__(self, seconds: float, file: Path, *, ends_epochs: bool) -> None:
        super().__init__(seconds, ends_epochs=ends_epochs)
        self.file, self.pid = file, os.getpid()
        self.has_trained = self.has_evaluated = self.is_watching = False

    def watch(self) -> None:
        """See backward, optimizer steps, and gradients that are switched off."""
        if not self.file.with_suffix(".claim").exists():
            self.write("watching")
        if self.is_watching:
            return
        self.is_watching = True
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        def trained(*_: Any) -> None:
            self.has_trained = True

        register_optimizer_step_post_hook(trained)
        _before(torch.autograd, "backward", trained)
        for mode in (torch.no_grad, torch.inference_mode):
            _before(mode, "__enter__", lambda *_: setattr(self, "has_evaluated", True))

    def trains(self, loop: _Watched) -> bool:
        import torch

        trained, evaluated = self.has_trained, self.has_evaluated
        self.has_trained = self.has_evaluated = False
        if not loop.num or not torch.is_grad_enabled():
            return False
        loop.num_quiet += not (trained or evaluated)
        return (trained or loop.num_quiet >= _QUIET_BATCHES) and self._claims()

    def _claims(self) -> bool:
        """Whether this process is the first that examines a loop; a script that forks has several."""
        try:
            os.close(os.open(self.file.with_suffix(".claim"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def write(self, state: str, reason: str = "") -> None:
        measured = None if self.examination is None else asdict(self.examination.measured)
        answer = {
            "state": state,
            "reason": reason,
            "num_loops": self.num_loops,
            "pid": os.getpid(),
            "measured": measured,
        }
        write_atomically(self.file, json.dumps(answer))

    def end(self, reason: str) -> None:
        """Write the result and end this process, without the script's own clean-up."""
        if self.examination is not None:
            self.write("done", "" if self.examination.may_fail else reason)
        elif os.getpid() == self.pid and not self.file.with_suffix(".claim").exists():
            self.write("done", reason)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(0)

    def fails_at_long_epochs(self) -> bool:
        """Whether the script, which has just failed, may succeed with epochs that end."""
        is_main, is_judged = os.getpid() == self.pid, self.examination and self.examination.measured.is_enough
        return is_main and self.is_beyond and not self.ends_epochs and not is_judged

    def run_again(self, *arguments: str) -> None:
        """Replace this process by one whose epochs end."""
        for process in psutil.Process().children(recursive=True):
            process.kill()
        self.file.with_suffix(".claim").unlink()
        os.execv(sys.executable, command_of(self.file, self.seconds, arguments, ends_epochs=True))


def _before(owner: Any, name: str, call: Callable[..., None]) -> None:
    """Call `call` before each call of a function of `owner`."""
    original = getattr(owner, name)

    def called(*arguments: Any, **options: Any) -> Any:
        call()
        return original(*arguments, **options)

    setattr(owner, name, called)


class _AtImport(importlib.abc.MetaPathFinder):
    """Calls `patch` with a module as soon as it is imported."""

    def __init__(self, name: str, patch: Callable[[ModuleType], Any]) -> None:
        self.name, self.patch = name, patch

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_patch(module: ModuleType) -> None:
                run(module)
                self.patch(module)

            spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]
        return spec


def command_of(file: Path, seconds: float, words: Sequence[str], *, ends_epochs: bool = False) -> list[str]:
    """The command that runs a script with its arguments, `words`, and writes the state to `file`."""
    module, mode = "imagenet_opt.diagnosis.hook", "ends_epochs" if ends_epochs else ""
    return [sys.executable, "-m", module, str(file), str(seconds), mode, *words]


def main() -> None:
    """argv: the file of the state, seconds, "ends_epochs" or "", the script and its arguments."""
    file, seconds, ends_epochs, script, *arguments = sys.argv[1:]
    end_with_parent(whole_group=True)
    hook = _OfScript(float(seconds), Path(file), ends_epochs=bool(ends_epochs))
    sys.meta_path.insert(0, _AtImport(_DATALOADER, hook.patch))
    sys.argv, sys.path[0] = [script, *arguments], str(Path(script).absolute().parent)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        hook.end(f"the script ended with status {end.code or 0}")
    except BaseException as error:
        if hook.fails_at_long_epochs():
            hook.run_again(script, *arguments)
        if hook.examination is None or not hook.examination.may_fail:
            traceback.print_exc()
        hook.end(f"the script raised {named_first_line(error)}")
    hook.end("the script ended")


if __name__ == "__main__":
    main()
