"""Schema of the config's ``[evaluation]`` table. Commands that judge a single kernel need no other table."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.config.tolerance import DEFAULT, largest_error
from engine.config.values import Device, MemoryLimit, Positive, Table, Tolerance


class EvaluationConfig(Table):
    """Settings for building, checking and timing kernels."""

    device: Device = "auto"
    """Devices on which the judge runs kernels: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, or a list of GPUs. ``auto``:
    all GPUs of the same model as the first, or the CPU if there is no GPU or no ``nvcc``.
    """
    builders: int = Field(default=0, ge=0, le=1024)
    """Maximum number of compilers that run in parallel. 0: the engine derives the maximum from the number of cores."""
    trials: int = Field(default=8, ge=3, le=1000)
    """Number of fresh input sets on which a kernel must be correct before the judge times it."""
    tolerance: Tolerance = DEFAULT
    """Largest allowed error of an output element, relative to the rms of the output plus the element's magnitude.
    ``kernelbench``: 1e-4 in fp32, 1e-2 in half precision. ``crfm``: 1e-2. A number between 0 and 1 sets the limit.
    """
    precision: Literal["any", "fp32"] = "any"
    """Required precision. ``any``: a kernel may use lower precision within the tolerance. ``fp32``: a kernel must be as
    accurate as fp32.
    """
    libraries: Literal["refuse", "label"] = "refuse"
    """Policy for kernels that call a library (cuBLAS, cuDNN, PyTorch's operators). ``refuse``: the judge rejects
    these kernels. ``label``: the judge accepts them, and the verdict names the library.
    """
    max_pairs: int = Field(default=200, ge=8, le=100_000)
    """Maximum number of timing pairs per evaluation. Each pair times the reference and the kernel. For a thorough
    verdict, each of three evaluations may measure seven times as many pairs.
    """
    deadline_s: Positive = 30.0
    """Time limit for each step of a kernel's process (start, load or call), in seconds. The judge may set a shorter
    limit for calls.
    """
    memory_limit: MemoryLimit = "auto"
    """Memory limit of a kernel's process: bytes, or text such as ``4GiB``. ``auto``: the judge derives the limit from
    the problem.
    """
    threads: int = Field(default=0, ge=0, le=4096)
    """Number of CPU threads for the reference and the kernel. 0: one per core."""
    sandbox: Literal["auto", "require", "off"] = "auto"
    """Isolation of kernels. ``auto``: the judge uses the strongest isolation that this machine allows. ``require``: the
    judge runs only if every isolation layer works. ``off``: kernels run with your permissions.
    """
    torch_compile: bool = True
    """Whether to also time the reference under ``torch.compile``."""
    other_sizes: bool = False
    """Whether to judge each problem's best kernel at a smaller, an odd and a larger size when the search ends."""

    @property
    def devices(self) -> tuple[str, ...]:
        """``device`` as a list of names: ``("auto",)``, ``("cpu",)``, ``("cuda:0", "cuda:1")``."""
        return (self.device,) if isinstance(self.device, str) else self.device

    def tolerance_for(self, dtype: str) -> float:
        """Maximum relative error for outputs of ``dtype``, for example "float32"."""
        return largest_error(self.tolerance, dtype)
