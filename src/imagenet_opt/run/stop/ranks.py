"""Several processes of a run: all begin with the same data and checkpoint, all stop at the same batch, and each ends
when another has died.

A collective operation with a dead process waits for its time-out, half an hour, or for ever. Here each process keeps a
TCP connection to rank 0. The kernel closes the connection when a process dies; keep-alive probes detect a machine that
is down.
"""

import logging
import os
import secrets
import socket
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer

from imagenet_opt.errors import ImagenetOptError, RanksDiffer, TrainingError
from imagenet_opt.run.checkpoint import files as checkpoints
from imagenet_opt.run.checkpoint.writer import wait_for_writers
from imagenet_opt.run.hooks import Identified

log = logging.getLogger(__name__)

_CONSENSUS_TIMEOUT = timedelta(minutes=30)
_BYE = "bye"
_CONNECT_SECONDS = 60
_HELLO_SECONDS = 10
_POLL_SECONDS = 0.1
_CLEAN_UP_SECONDS = 40
_PROBES = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
_LOOPBACK = "127.0.0.1"
_REMEDY = "allow TCP connections between the machines, or turn the monitoring of ranks off with '~callbacks.preemption'"
_SIGNS = ("peer", "gloo", "NCCL", "ProcessGroup", "store", "socket")
"""Words in the errors of collective operations when a process has died."""
_lost: list[str] = []
"""Why the first process was lost; at most one entry."""
_peer_lost = threading.Event()
_watching = threading.Event()


class RankWatchdog:
    """Watches the other processes of a run from a thread.

    broadcast: returns rank 0's value in every process.
    grace_seconds: time for the main thread to fail by itself, if the backend detects the loss.
    """

    def __init__(
        self, *, rank: int, world_size: int, broadcast: Callable[[Any], Any], grace_seconds: float = 15
    ) -> None:
        self.rank, self.grace_seconds = rank, grace_seconds
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._lines: dict[int, socket.socket] = {}
        self._readers: dict[int, IO[str]] = {}  # one reader per connection, since a reader may buffer later text
        host = address(world_size)
        server = listen(host, world_size) if rank == 0 else None
        port, token = broadcast((server.getsockname()[1], secrets.token_hex(8)) if server else None)
        if server:
            self._accept(server, world_size, token)
        else:
            self._connect(host, port, token)
        _watching.set()
        for peer, line in self._lines.items():
            line.settimeout(None)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, seconds in _PROBES.items():
                if hasattr(socket, name):
                    line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
            threading.Thread(target=self._watch, args=(peer, line), daemon=True, name=f"watching rank {peer}").start()

    def failing(self, error: BaseException) -> None:
        """Tell the other processes why this process ends."""
        self._send(f"rank {self.rank} ended: {type(error).__name__}: {' '.join(str(error).split())[:500]}")
        self._ending.set()

    def close(self) -> None:
        """Tell the other processes that the run has ended normally here."""
        self._ending.set()
        self._send(_BYE)
        for line in self._lines.values():
            with suppress(OSError):
                line.shutdown(socket.SHUT_WR)

    def _connect(self, host: str, port: int, token: str) -> None:
        """Raises TrainingError when rank 0 cannot be reached."""
        try:
            self._lines[0] = socket.create_connection((host, port), timeout=_CONNECT_SECONDS)
            self._lines[0].sendall(f"{token} {self.rank}\n".encode())
        except OSError as error:
            message = f"rank {self.rank} cannot connect to rank 0 at {host}:{port} ({error}); {_REMEDY}"
            raise TrainingError(message) from None
        self._readers[0] = self._lines[0].makefile("r")

    def _accept(self, server: socket.socket, world_size: int, token: str) -> None:
        """Wait for all processes and reject other connections. Raises TrainingError when a process does not connect."""
        deadline = time.monotonic() + _CONNECT_SECONDS
        with server:
            server.settimeout(_POLL_SECONDS)
            while missing := set(range(1, world_size)) - set(self._lines):
                if time.monotonic() > deadline:
                    ranks = ", ".join(map(str, sorted(missing)))
                    message = f"rank {ranks} did not connect to rank 0 within {_CONNECT_SECONDS} s"
                    raise TrainingError(f"{message}, port {server.getsockname()[1]}; {_REMEDY}")
                with suppress(TimeoutError):
                    line, _ = server.accept()  # each has its thread, since a stranger may say nothing
                    threading.Thread(target=self._greet, args=(line, token), daemon=True, name="greeting").start()

    def _greet(self, line: socket.socket, token: str) -> None:
        line.settimeout(_HELLO_SECONDS)
        reader = line.makefile("r")
        try:
            word, _, peer = reader.readline(100).partition(" ")
            if word == token:
                self._readers[int(peer)] = reader
                self._lines[int(peer)] = line
                return
        except (OSError, ValueError) as error:
            log.warning(f"rejected a connection to the port of rank 0 that is not from this run: {error}")
        reader.close()
        line.close()

    def _watch(self, peer: int, line: socket.socket) -> None:
        text = ""
        with line, suppress(OSError), self._readers[peer] as reader:
            text = reader.readline().strip()
        if text != _BYE:
            self._lose(text or f"rank {peer} has died, probably killed (out of memory?); see the output of that rank")

    def _lose(self, reason: str) -> None:
        with self._lock:
            if _lost or self._ending.is_set():
                return
            _lost.append(reason)
        _peer_lost.set()
        self._send(reason)
        if self._ending.wait(self.grace_seconds):
            threading.Event().wait(_CLEAN_UP_SECONDS)
        wait_for_writers(_CLEAN_UP_SECONDS)  # otherwise the checkpoint in progress would be lost
        print(f"TrainingError: {_message(reason)}", file=sys.stderr, flush=True)
        os._exit(1)

    def _send(self, text: str) -> None:
        for line in self._lines.values():
            with suppress(OSError):
                line.sendall(f"{text}\n".encode())


def address(world_size: int) -> str:
    """MASTER_ADDR, or the loopback address if all processes are on this machine: torchrun sets MASTER_ADDR to localhost
    or to the name of the machine, which other machines can reach."""
    host = os.environ.get("MASTER_ADDR", "")
    on_one_machine = host in ("localhost", "::1") or os.environ.get("LOCAL_WORLD_SIZE") == str(world_size)
    return _LOOPBACK if on_one_machine else host


def listen(host: str, world_size: int) -> socket.socket:
    """A server on this machine only, if `host` is its loopback address, else on all its addresses."""
    if host == _LOOPBACK:
        return socket.create_server((host, 0), backlog=world_size)
    has_ipv6 = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_ipv6 else socket.AF_INET
    return socket.create_server(("", 0), family=family, backlog=world_size, dualstack_ipv6=has_ipv6)


def explain(error: BaseException) -> TrainingError | None:
    """The loss of another process, as the cause of an error of a collective operation; None for any other error."""
    if _watching.is_set() and any(sign in str(error) for sign in _SIGNS) and _peer_lost.wait(5):
        return TrainingError(_message(_lost[0]))
    return None


def _message(reason: str) -> str:
    return f"{reason}; the same command resumes from the last checkpoint"


class StopConsensus:
    """Gives every process the maximum of the numbers of all processes, one batch late.

    A number that is passed at one batch is returned at the next batch, so that the exchange over the host's network
    overlaps with the step and no process waits. A number above 0 is returned once. Every process must make the same
    number of calls.
    """

    def __init__(self) -> None:
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._group: Any = dist.new_group(backend="gloo", timeout=_CONSENSUS_TIMEOUT) if several else None
        self._number = torch.zeros(1, dtype=torch.int64)
        self._pending: dist.Work | None = None

    def __call__(self, number: int) -> int:
        """Raises RuntimeError when another process has died."""
        if self._group is None:
            return number
        if self._pending is not None:
            self._pending.wait()
        agreed = int(self._number)
        self._number[0] = 0 if agreed else number
        self._pending = dist.all_reduce(self._number, dist.ReduceOp.MAX, group=self._group, async_op=True)
        return agreed


class RankCheck(Callback):
    """Compares data and checkpoint of all processes, before any process restores a checkpoint or trains.

    With other data or another checkpoint, processes would train on wrong samples, or wait for each other for ever. The
    check compares the `identity()` of the data module, if it has this method, and the step and content of `checkpoint`,
    the file to resume from.

    Raises RanksDiffer, in every process.
    """

    def __init__(self, checkpoint: Path | None) -> None:
        self.checkpoint = checkpoint

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit" or trainer.world_size == 1:
            return
        facts_by_rank: list[dict[str, Any]] = [{}] * trainer.world_size
        dist.all_gather_object(facts_by_rank, self._facts(trainer))
        first = facts_by_rank[0]
        for rank, facts in enumerate(facts_by_rank):
            pairs = {name: (facts.get(name, "none"), first.get(name, "none")) for name in first | facts}
            differences = [
                f"{name} {here} instead of {there}" for name, (here, there) in pairs.items() if here != there
            ]
            if differences:
                raise RanksDiffer(
                    f"rank {rank} differs from rank 0: {'; '.join(differences)}. All processes need the same files and "
                    "the same run folder: share data.root and hydra.run.dir between the nodes, or copy both "
                    "completely, then run the same command again"
                )

    def _facts(self, trainer: Trainer) -> dict[str, Any]:
        """The facts to compare; an error becomes a fact, since the other processes wait for this process."""
        data: Any = getattr(trainer, "datamodule", None)
        try:
            facts = dict(data.identity()) if isinstance(data, Identified) else {}
            if self.checkpoint is None:
                return facts | {"checkpoint of step": "none"}
            with zipfile.ZipFile(self.checkpoint) as archive:
                checksums = [(record.filename, record.CRC) for record in archive.infolist()]
            return facts | {
                "checkpoint of step": checkpoints.load(self.checkpoint)["global_step"],
                "checksum of the checkpoint": zlib.crc32(repr(checksums).encode()),
            }
        except (OSError, zipfile.BadZipFile, ImagenetOptError) as error:
            return {f"an error on rank {trainer.global_rank}": f"{type(error).__name__}: {error}"}
