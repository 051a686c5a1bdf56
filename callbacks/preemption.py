"""Stops a run at a safe point when its machine is reclaimed."""

import json
import logging
import threading
from collections.abc import Callable
from functools import partial
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urljoin
from urllib.request import ProxyHandler, Request, build_opener

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.optim import Optimizer

from imagenet_opt.errors import ConfigError, Preempted
from imagenet_opt.private_api import (
    call_around_fetches,
    replace_signals,
    restore_signals_and_fetches,
    spare_ended_children,
)
from imagenet_opt.run.stop.ranks import RankWatchdog, StopConsensus
from imagenet_opt.run.stop.signals import SPOT, stop

log = logging.getLogger(__name__)

_TIMEOUT_SECONDS = 2.0
_NEEDS_TOKEN, _NO_NOTICE = 401, 404
_ACTIONS = ("terminate", "stop", "hibernate")


class SpotNotice:
    """Polls `url` every `every_seconds` in a thread, and calls `notify` once when EC2 announces that it interrupts this
    spot instance, two minutes before it does.

    The thread fetches a token where the server requires one (IMDSv2). A failing server is polled again after one
    warning. https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    """

    def __init__(self, url: str, *, every_seconds: float, notify: Callable[[], None]) -> None:
        if not url.startswith(("http://", "https://")):
            raise ConfigError(f"callbacks.preemption.spot_notice_url={url} must begin with http://, or be null")
        self.url, self.every_seconds, self.notify = url, every_seconds, notify
        self._headers: dict[str, str] = {}
        self._closed = threading.Event()
        self._open = build_opener(ProxyHandler({})).open  # a link-local address, which no proxy knows
        threading.Thread(target=self._poll, daemon=True, name="spot notice").start()

    def close(self) -> None:
        """Stop polling. The thread ends by itself, at the latest after its current request."""
        self._closed.set()

    def _poll(self) -> None:
        warned = False
        while not self._closed.is_set():
            try:
                if self._announced():
                    self.notify()
                    return
            except (OSError, ValueError, HTTPException) as error:
                if not warned:
                    log.warning(f"cannot read spot notices from {self.url} ({error}); trying again")
                warned = True
            self._closed.wait(self.every_seconds)

    def _announced(self, *, may_renew: bool = True) -> bool:
        try:
            notice = json.loads(self._ask(Request(self.url, headers=self._headers)))
        except HTTPError as error:
            if error.code == _NO_NOTICE:
                return False
            if error.code != _NEEDS_TOKEN or not may_renew:
                raise
            lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
            token = self._ask(Request(urljoin(self.url, "/latest/api/token"), method="PUT", headers=lifetime))
            self._headers = {"X-aws-ec2-metadata-token": token.decode("ascii").strip()}
            return self._announced(may_renew=False)
        return isinstance(notice, dict) and notice.get("action") in _ACTIONS

    def _ask(self, request: Request) -> bytes:
        try:
            with self._open(request, timeout=_TIMEOUT_SECONDS) as response:
                answer: bytes = response.read(4096)
        except HTTPError as error:
            error.close()
            raise
        return answer


class Preemption(Callback):
    """Raises `Preempted` between two batches of training or validation, after a signal or a spot notice.

    The signals are SIGTERM, SIGUSR1 and Ctrl-C. A run of one process stops at once while it waits for data, and before
    its first step. Several processes stop at the same batch, even if only one process got the signal; all must have the
    same number of batches. A second Ctrl-C ends the process immediately. Lightning's signal handlers are turned off,
    including its SLURM requeue.

    The checkpoint callback saves the state: its `on_exception` receives the `Preempted`. spot_notice_url: requested
    every `spot_notice_seconds`; None for never.

    Logs nothing.
    """

    def __init__(self, *, spot_notice_url: str | None = None, spot_notice_seconds: float = 5.0) -> None:
        if not spot_notice_seconds > 0:
            raise ConfigError(f"callbacks.preemption.spot_notice_seconds={spot_notice_seconds} must be above 0")
        self.spot_notice_url = spot_notice_url
        self.spot_notice_seconds = spot_notice_seconds
        self._notice: SpotNotice | None = None
        self._peers: RankWatchdog | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        stop.install()
        stop.at_once, stop.over = True, False
        self._agree, self._alone, self._stepped = StopConsensus(), trainer.world_size == 1, False
        replace_signals(trainer, at_end=partial(self._restore, trainer))
        call_around_fetches(trainer, before=self._before_fetch, after=self._after_fetch)
        if not self._alone:
            broadcast = trainer.strategy.broadcast
            self._peers = RankWatchdog(rank=trainer.global_rank, world_size=trainer.world_size, broadcast=broadcast)
            spare_ended_children()
        if self.spot_notice_url is not None and trainer.local_rank == 0:
            notify = partial(stop.ask, SPOT)
            self._notice = SpotNotice(self.spot_notice_url, every_seconds=self.spot_notice_seconds, notify=notify)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        self._stepped, stop.at_once = True, False  # a half-finished step must not be saved

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stop.over = True

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self._peers is not None and not (isinstance(exception, Preempted) and self._stepped):
            self._peers.failing(exception)

    def _restore(self, trainer: Trainer) -> None:
        """Undo the replacements when the fit ends in any way."""
        if self._notice is not None:
            self._notice.close()
        if self._peers is not None:
            self._peers.close()
        restore_signals_and_fetches(trainer)
        stop.restore()

    def _before_fetch(self) -> None:
        """Called at the boundary between two batches."""
        if self._alone:
            stop.at_once = True
        if agreed := self._agree(stop.why):
            stop.why = agreed
            stop.check()

    def _after_fetch(self) -> None:
        if self._alone:
            stop.at_once = not self._stepped
