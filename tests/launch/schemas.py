"""The fields of SkyPilot's and Kubeflow's files that launch/ uses. An unknown field, or a value of another type, is
refused.

Sources: get_task_schema, get_resources_schema in sky/utils/schemas.py of skypilot 0.14.1;
pkg/apis/trainer/v1alpha1/{trainjob,trainingruntime}_types.go of kubeflow/trainer 2.2, and for the parts below a pod
template the Kubernetes API (batch/v1 JobSpec, core/v1 PodSpec).
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
"""A DNS label of RFC 1035."""
Quantity = Annotated[str, Field(pattern=r"^\d+(\.\d+)?(m|[KMGT]i?)?$")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class JobRecovery(Strict):
    strategy: Literal["FAILOVER", "EAGER_NEXT_REGION"]
    recover_on_exit_codes: list[Annotated[int, Field(ge=0, le=255)]]


class SkyResources(Strict):
    infra: Annotated[str, Field(pattern=r"^(aws|gcp|azure|lambda|kubernetes|k8s)(/[^/]+){0,2}$")]
    accelerators: Annotated[str, Field(pattern=r"^[A-Z0-9-]+(:\d+)?$")]
    cpus: Annotated[str, Field(pattern=r"^\d+\+?$")] | int
    use_spot: bool
    disk_size: int
    disk_tier: Literal["low", "medium", "high", "ultra", "best"]
    job_recovery: JobRecovery


class SkyTask(Strict):
    name: str
    workdir: str
    envs: dict[str, str]
    resources: SkyResources
    setup: str
    run: str


class Metadata(Strict):
    name: Name


class Labels(Strict):
    labels: dict[str, str]


class EnvironmentVariable(Strict):
    name: str
    value: str


class RuntimeRef(Strict):
    api_group: Literal["trainer.kubeflow.org"] = Field(alias="apiGroup")
    kind: Literal["TrainingRuntime", "ClusterTrainingRuntime"]
    name: str


class PerNode(Strict):
    requests: dict[str, Quantity]
    limits: dict[str, Quantity]


class Trainer(Strict):
    image: Annotated[str, Field(max_length=500)]
    num_nodes: int = Field(alias="numNodes")
    command: list[str]
    args: list[str]
    env: list[EnvironmentVariable]
    resources_per_node: PerNode = Field(alias="resourcesPerNode")


class TrainJobSpec(Strict):
    runtime_ref: RuntimeRef = Field(alias="runtimeRef")
    trainer: Trainer


class TrainJob(Strict):
    api_version: Literal["trainer.kubeflow.org/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["TrainJob"]
    metadata: Metadata
    spec: TrainJobSpec


class VolumeMount(Strict):
    name: str
    mount_path: str = Field(alias="mountPath")


class Container(Strict):
    name: Literal["node"]
    image: str
    volume_mounts: list[VolumeMount] = Field(alias="volumeMounts")


class EmptyDir(Strict):
    medium: Literal["Memory"]
    size_limit: Quantity = Field(alias="sizeLimit")


class Volume(Strict):
    name: str
    empty_dir: EmptyDir = Field(alias="emptyDir")


class PodSpec(Strict):
    restart_policy: Literal["Never"] = Field(alias="restartPolicy")  # needed by podFailurePolicy
    termination_grace_period_seconds: int = Field(alias="terminationGracePeriodSeconds")
    containers: list[Container]
    volumes: list[Volume]


class PodTemplate(Strict):
    spec: PodSpec


class PodCondition(Strict):
    type: Literal["DisruptionTarget"]
    status: Literal["True"]


class FailureRule(Strict):
    action: Literal["Ignore", "Count", "FailJob"]
    on_pod_conditions: list[PodCondition] = Field(alias="onPodConditions")


class FailurePolicy(Strict):
    rules: list[FailureRule]


class JobSpec(Strict):
    backoff_limit: int = Field(alias="backoffLimit")
    pod_failure_policy: FailurePolicy = Field(alias="podFailurePolicy")
    template: PodTemplate


class JobTemplate(Strict):
    metadata: Labels
    spec: JobSpec


class ReplicatedJob(Strict):
    name: Literal["node"]
    template: JobTemplate


class JobSetSpec(Strict):
    replicated_jobs: list[ReplicatedJob] = Field(alias="replicatedJobs")


class JobSetTemplate(Strict):
    spec: JobSetSpec


class Torch(Strict):
    num_proc_per_node: Literal["auto", "cpu", "gpu"] | int = Field(alias="numProcPerNode")


class Policy(Strict):
    num_nodes: int = Field(alias="numNodes")
    torch: Torch


class RuntimeSpec(Strict):
    ml_policy: Policy = Field(alias="mlPolicy")
    template: JobSetTemplate


class TrainingRuntime(Strict):
    api_version: Literal["trainer.kubeflow.org/v1alpha1"] = Field(alias="apiVersion")
    kind: Literal["TrainingRuntime"]
    metadata: Metadata
    spec: RuntimeSpec
