"""Schema of the config's ``[evaluation]`` table. Commands that judge a single kernel need no other table."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.config.tolerance import DEFAULT, largest_error
from engine.config.values import Device, MemoryLimit, Positive, Table, Tolerance


class EvaluationConfig(Table):
    """How the judge builds, checks and times kernels."""

    device: Device = "auto"
    """``auto``, ``cpu``, ``cuda``, ``cuda:1``, or a list of GPUs. ``auto``: all GPUs of the same model as the first, or
    the CPU if there is no GPU or no ``nvcc``.
    """
    builders: int = Field(default=0, ge=0, le=1024)
    """Maximum number of compilers that run in parallel. 0 derives it from the number of cores."""
    trials: int = Field(default=8, ge=3, le=1000)
    """Number of fresh input sets on which a kernel must be correct before the judge times it."""
    tolerance: Tolerance = DEFAULT
    """Largest error of an output element, relative to the rms of the output plus the element's magnitude.
    ``kernelbench``: 1e-4 in fp32, 1e-2 in half precision. ``crfm``: 1e-2. A number between 0 and 1 also works."""
    precision: Literal["any", "fp32"] = "any"
    """``any``: a kernel may use lower precision within the tolerance. ``fp32``: it must be as accurate as fp32."""
    libraries: Literal["refuse", "label"] = "refuse"
    """Policy for kernels that let a library do their work (cuBLAS, cuDNN, PyTorch's operators). ``refuse``: the judge
    rejects them. ``label``: the judge accepts them, and the verdict names the library."""
    max_pairs: int = Field(default=200, ge=8, le=100_000)
    """Maximum number of timing pairs per evaluation; a thorough verdict allows seven times as many in each of its three
    evaluations. Each pair times the reference and the kernel."""
    deadline_s: Positive = 30.0
    """Time limit for each answer of a kernel's process (start, load or call), in seconds. Calls may have a shorter
    limit."""
    memory_limit: MemoryLimit = "auto"
    """Memory limit of a kernel's process: bytes, or text such as ``4GiB``. ``auto`` derives the limit from the problem.
    """
    threads: int = Field(default=0, ge=0, le=4096)
    """Number of CPU threads for the reference and the kernel. 0: one per core."""
    sandbox: Literal["auto", "require", "off"] = "auto"
    """``auto``: the strongest isolation that this machine allows. ``require``: refuse to run unless every isolation
    layer works. ``off``: kernels run with your permissions."""
    torch_compile: bool = True
    """Whether to also time the reference under ``torch.compile``."""
    other_sizes: bool = False
    """Whether to finally judge each problem's best kernel at a smaller, an odd and a larger size."""

    @property
    def devices(self) -> tuple[str, ...]:
        """``device`` as a list of names: ``("auto",)``, ``("cpu",)``, ``("cuda:0", "cuda:1")``."""
        return (self.device,) if isinstance(self.device, str) else self.device

    def tolerance_for(self, dtype: str) -> float:
        """Maximum relative error for outputs of ``dtype``, for example "float32"."""
        return largest_error(self.tolerance, dtype)
