"""The order of the doctor's causes, and the verdict."""

from imagenet_opt.doctor.causes_cpu import BATCH_RULES, CONTENTION, CPU_RULES
from imagenet_opt.doctor.causes_gpu import GPU_RULES, LAUNCH_BOUND, PROCESS_RULES, SLOW_COPY
from imagenet_opt.doctor.causes_storage import STORAGE_RULES
from imagenet_opt.doctor.diagnosis import Diagnosis, diagnose
from imagenet_opt.doctor.environment import ENVIRONMENT
from imagenet_opt.doctor.evidence import Evidence

CAUSES = (*GPU_RULES, *PROCESS_RULES, *STORAGE_RULES, *BATCH_RULES, SLOW_COPY, *CPU_RULES, LAUNCH_BOUND, CONTENTION)
"""The simpler remedies first: the order decides between causes of nearly the same gain."""


def judge(evidence: Evidence) -> Diagnosis:
    return diagnose(evidence, CAUSES, ENVIRONMENT)
