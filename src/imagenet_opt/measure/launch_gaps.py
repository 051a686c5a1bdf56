"""How much of a step no kernel runs, and what closing these gaps could gain at most."""

from dataclasses import dataclass

MATTERS = 0.03
"""A smaller share of a step is within what steps vary by."""
PERMISSION = (
    "CUPTI needs permission: start the container with --cap-add=SYS_ADMIN, or load NVIDIA's driver with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)
"""Where a profiler sees no kernels, as in containers that may not look."""


@dataclass(frozen=True)
class LaunchGaps:
    """Seconds of a step on the GPU, without waits for data: from one to the next, and those in which kernels ran, of
    the same stretch. The latter come from a profiler; where several kernels run at the same time it counts once.

    Raises ValueError where one of them is not above 0.
    """

    step_seconds: float
    kernel_seconds: float

    def __post_init__(self) -> None:
        if min(self.step_seconds, self.kernel_seconds) <= 0:
            raise ValueError(f"seconds must be above 0: {self}")

    @property
    def gap_seconds(self) -> float:
        return max(0.0, self.step_seconds - self.kernel_seconds)

    @property
    def gap_share(self) -> float:
        """Of the step, 0 to 1."""
        return self.gap_seconds / self.step_seconds

    @property
    def most_gain(self) -> float:
        """How many times as fast a step is without any gap: the most that a CUDA graph brings. 1 for none."""
        return max(1.0, self.step_seconds / self.kernel_seconds)

    @property
    def can_matter(self) -> bool:
        return self.gap_share >= MATTERS

    def sentence(self) -> str:
        percent, gain = f"{100 * self.gap_share:.1f} %", f"{self.most_gain:.2f} x at most"
        if not self.can_matter:
            return (
                f"no kernel runs in only {percent} of a step: a CUDA graph cannot matter ({gain}), nor can compile by "
                "closing gaps"
            )
        gap, step = 1000 * self.gap_seconds, 1000 * self.step_seconds
        return (
            f"no kernel runs in {percent} of a step ({gap:.1f} of {step:.1f} ms), in which launches are late: closing "
            f"the gaps gains {gain}, by callbacks.acceleration.cuda_graph=true or compile=true"
        )
