"""MLflow: in a file of the run folder, or on a server; a resumed run stays the same run."""

import os
import time
from functools import partial
from pathlib import Path
from typing import Any

from imagenet_opt.run.loggers.sent_rows import SentRows, run_id


class MlflowRunLogger(SentRows):
    """The run has the tag imagenet_opt_id, the id in mlflow_id.txt. Raises ConfigError if MLflow is not installed."""

    service, key = "MLflow", "mlflow"
    name, version = key, ""

    def __init__(
        self,
        *,
        folder: str,
        project: str = "imagenet-opt",
        name: str | None = None,
        group: str | None = None,
        tracking_uri: str | None = None,
    ) -> None:
        super().__init__(folder=folder, logged_until=None)
        self._client: Any = None
        uri = tracking_uri or f"sqlite:///{Path(folder).resolve()}/mlflow.db"
        self._start(partial(self._open, uri, project, name, {"group": group} if group else {}))

    def _open(self, uri: str, project: str, name: str | None, tags: dict[str, str]) -> None:
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # MLflow's 7 stop the training for minutes
        from mlflow import MlflowClient

        client, id = MlflowClient(uri), run_id(self._folder, self.key)
        found = client.get_experiment_by_name(project)
        experiment = found.experiment_id if found else client.create_experiment(project)
        run = next(iter(client.search_runs([experiment], f"tags.imagenet_opt_id = '{id}'")), None)
        run = run or client.create_run(experiment, tags=tags | {"imagenet_opt_id": id}, run_name=name)
        self._id = run.info.run_id
        client.update_run(self._id, status="RUNNING")
        self.logged_until = max((row.step for row in client.get_metric_history(self._id, "epoch")), default=-1)
        self._client = client

    def _send(self, row: dict[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        self._client.log_batch(self._id, [Metric(name, value, now, step) for name, value in row.items()])

    def finish(self, *, exit_code: int, preempted: bool = False) -> None:
        if self._client is not None:
            status = "KILLED" if preempted else "FAILED" if exit_code else "FINISHED"
            self._at_end(partial(self._client.set_terminated, self._id, status), "could not end its run")
