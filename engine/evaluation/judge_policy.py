"""The judge's constants, each with its unit and reason. ``docs/explanation/judge.md`` explains the checks.

Constants of an interface (system calls, file formats, the CUDA driver) stay with the code that uses the interface.
"""

from __future__ import annotations

from msgspec import Struct

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


class PerDevice(Struct, frozen=True):
    """A number with separate values for CPU and GPU."""

    cpu: float
    cuda: float

    def __getitem__(self, kind: str) -> float:
        return self.cuda if kind == "cuda" else self.cpu


class Effort(Struct, frozen=True):
    """The time that the judge may spend on timing for one verdict."""

    half_width: float
    """Maximum distance from the median to either bound of a settled ratio's 95% interval, relative to the median."""
    least_s: float
    """Minimum seconds of timing, because the speed of a shared machine drifts over seconds."""
    overhead_s: float
    """Maximum seconds of timing, excluding the runs of the kernel and the reference."""
    runs_s: float
    """Maximum seconds for running the kernel and the reference."""


class PairPolicy(Struct, frozen=True):
    """How many pairs of reference and kernel calls to time, and which other calls to make between pairs."""

    least: int = 8
    """Minimum number of pairs for a settled ratio."""
    least_outliers: int = 4
    """Minimum number of pairs with outliers. Consider a kernel that samples one row in eight, and computes exactly if
    its sample contains an outlier. Its outputs are correct in a quarter of these pairs, so all four are correct in 0.4%
    of verdicts.
    """
    least_exact: int = 16
    """Minimum number of pairs if fp32 is required, because the judge measures precision on a sample of the pairs."""
    least_far: int = 6
    """Minimum number of pairs for a kernel that is far too slow. For a kernel this slow, the exact ratio does not
    matter.
    """
    far: float = 0.5
    """Speedup below which a kernel counts as far too slow."""
    look_always: int = 16
    """Number of initial pairs. The judge computes the statistics after each of them."""
    look_every: int = 8
    """Number of later pairs between two computations of the statistics. The time for the statistics grows with the
    number of pairs, from 0.05 ms to 0.8 ms with 1,400 pairs.
    """
    trial_one_in: int = 8
    """Average number of pairs per correctness trial; trials follow random pairs, so a kernel cannot tell that only
    timing remains.
    """
    writes_one_in: int = 8
    """Average number of pairs per extra kernel call with memory writes, on a GPU. Work that the kernel leaves on the
    GPU slows these writes.
    """
    least_writes: int = 5
    """Minimum number of calls with memory writes if the reference was slow. The judge uses their median time."""
    outliers_one_in: int = 3
    """Number of pairs in a cycle. In each cycle, one pair has outliers in its inputs. This rate exposes kernels that
    sample their inputs, but is too low to change a median.

    Another pair of the cycle has inputs with mean zero, which reveal precision. If fp32 is required, all pairs have
    such inputs where the problem permits them.
    """
    between_s: float = 0.3
    """Maximum time in seconds for the extra trials, which run at random points between the pairs."""
    checksums_one_in: int = 4
    """Average number of calls per comparison of inputs on a CPU, where a checksum takes as long as a short kernel."""
    quick: Effort = Effort(half_width=0.01, least_s=0.0, overhead_s=0.6, runs_s=6.0)
    """Effort for a verdict in a search, which later times the leaders again in a runoff."""
    thorough: Effort = Effort(half_width=0.004, least_s=0.5, overhead_s=1.5, runs_s=2.0)
    """Effort for one timing process of ``kernel-tui eval`` and ``compare --thorough``."""
    thorough_busy: Effort = Effort(half_width=0.004, least_s=1.5, overhead_s=4.0, runs_s=6.0)
    """Effort for a thorough verdict while other programs are running, or if most pairs are disturbed."""
    processes: int = 3
    """Number of timing processes for a thorough verdict. Memory and thread layout change times by 1% between processes.
    """
    thorough_pairs: int = 7
    """Multiplier for ``max_pairs`` in each process of a thorough verdict, because short kernels need thousands of
    pairs.
    """
    widest: float = 4.0
    """Ratio of the 95% interval's bounds above which a speedup is undecided, if the interval contains 1."""
    undecided: float = 4.0
    """Multiplier for the timing limits of an undecided kernel."""
    noisy_longer: float = 6.0
    """Multiplier for the timing limits of a noisy kernel."""
    noisy: float = 0.015
    """Distance from the median to either bound of the interval, relative to the median, above which a kernel on a GPU
    is noisy. Most noisy kernels launch from Python.
    """


class StatisticsPolicy(Struct, frozen=True):
    """How to compute a speedup from pairs."""

    confidence: float = 0.95
    """Confidence level of every interval."""
    normal_above: int = 500
    """Number of samples above which the normal distribution replaces the binomial distribution."""
    order: float = 1.15
    """Maximum effect of the order within a pair, as a factor in either direction. The order matters because the second
    call finds different data in the caches.
    """
    least_of_order: int = 3
    """Minimum number of pairs per order. With fewer pairs, the order's effect is unknown."""
    least_of_process: int = 16
    """Minimum number of pairs in a process. With fewer pairs, the process's median is unreliable."""
    disturbed: float = 1.15
    """Multiple of the reference's quiet time above which a reference call counts as disturbed."""
    quiet: float = 0.02
    """Quantile of the reference's times that defines the reference's quiet time."""
    least_kept: int = 8
    """Minimum number of pairs per order that the judge keeps. If fewer pairs are undisturbed, the judge keeps the least
    disturbed pairs.
    """


class ClockPolicy(Struct, frozen=True):
    """How much longer a call may take than the kernel's process reports. The judge adds any excess to the reported
    time.
    """

    overhead: float = 1.2
    """Allowed call overhead of a kernel, relative to the overhead of an empty kernel, whose data stay in the caches.
    Measured ratios range from 0.8 to 1.25.
    """
    beside_ms: PerDevice = PerDevice(0.08, 0.2)
    """Additional allowance per call, in milliseconds. The largest additional time measured on an H200 is 0.15 ms."""
    unknown_ms: PerDevice = PerDevice(0.45, 1.5)
    """Call overhead to assume if the empty kernel does not build."""
    untimed: float = 1.6
    """Maximum duration of an untimed call, relative to the timed call, plus ``python_call_ms``."""
    python_call_ms: float = 0.2
    """Allowance for arguments, weights and output checks around the ``forward`` of a Python kernel. The allowance also
    applies to each untimed call, because launching may take longer than the GPU work.
    """
    python_batch_ms: PerDevice = PerDevice(0.15, 0.15)
    """Allowance around ``forward`` for a call in a batch, during which no process has to wake up."""
    output_copy: float = 1.5
    """Allowed time for copying a Python kernel's outputs, relative to the judge's own copy time. The runner copies the
    outputs after its clock has stopped.
    """
    output_ms: float = 0.008
    """Allowance for checking an output of a Python kernel and starting its copy. On an H200, each of these two steps
    takes 4 us of processor time. The judge's own copy time contains only the copying, if the GPU is still busy when the
    copies start.
    """
    binds: int = 32
    """Number of recent weight-binding times that the judge keeps."""
    bind: float = 2.0
    """Allowed time for binding weights, relative to the judge's own time. While its clock is stopped, a Python kernel's
    process binds a slot's weights and inspects the buffers that the reference writes.
    """
    misreported: float = 1.5
    """Multiple of the reported time above which a call counts as cheating, if the excess is above ``misreported_ms``.
    """
    misreported_ms: float = 0.03
    """Minimum excess in milliseconds that counts as cheating. Below either limit, the judge only replaces the reported
    time with its own.
    """
    remarked: float = 1.05
    """Ratio of the judge's time to the reported time above which the verdict notes that it uses the judge's time."""
    batch_below_ms: float = 1.0
    """Duration above which the judge times calls only one at a time. The time that a longer call can hide is too short
    for a batch to reveal.
    """
    batch_target_ms: float = 6.0
    """Target duration of a batch. The number of buffers limits the actual duration."""
    batches: int = 8
    """Maximum number of batches to time until one is undisturbed."""
    probes: int = 3
    """Maximum attempts to time batches without disturbance by other programs, for a kernel that seems to hide time."""
    batches_contended: int = 24
    """Maximum number of batches while other programs are running."""
    batch_colder: float = 1.6
    """Time limit for a call in a batch, relative to a single call. The buffers of a batch are colder than those of a
    single call.
    """
    batch_coldest: float = 4.0
    """Time limit for a call in a batch, relative to a single call, if calls on the same buffers confirm the reported
    time.

    An honest transpose with TLB misses took 3.9 times as long in one measurement.
    """
    batch_colder_ms: PerDevice = PerDevice(0.05, 0.05)
    """Additional time allowed for a call in a batch."""
    batch_cold: float = 1.5
    """Allowed extra time for cold buffers, relative to the time to touch them once. A kernel may touch them repeatedly.
    """
    batch_call_ms: PerDevice = PerDevice(0.004, 0.05)
    """The runner's loop overhead per call of a batch."""
    tiny_ms: float = 0.05
    """Duration of a kernel below which the judge measures the loop overhead with an empty kernel."""
    warm_batch_target_ms: float = 12.0
    """Target duration of a batch on the same buffers."""
    warm_batch_most: int = 2000
    """Maximum number of calls in a batch on the same buffers."""
    warm_batch_factor: float = 1.3
    """Time limit for a call in a batch on the same buffers, relative to a single call. Calls on the same buffers find
    their data in the caches.
    """
    slow_clock: float = 1.2
    """Ratio of the judge's time to the reported time of a batch on the same buffers above which a compiled CPU kernel's
    process has a slow clock. For 26 honest kernels on two cores of an Intel Xeon, the smallest ratio of each kernel's
    batches was 0.87 to 1.003 (the serial tests in ``tests/exploits/test_honest.py``).
    """
    between_calls: int = 12
    """Minimum number of calls of a Python kernel on alternating buffers. With fewer calls, a kernel could hide more
    time outside each call.
    """
    batch_compared: int = 64
    """Number of random outputs to compare per batch. In 999 of 1,000 batches, the comparison detects a kernel that
    skips one call in ten.
    """
    queue_target_ms: float = 2.0
    """Target total time of the GPU calls queued behind a gate."""
    queued_factor: float = 1.1
    """Time limit for a queued call, relative to the time that the runner measures with events. The L2 cache can buffer
    the writes of one call, but not the writes of many calls.
    """
    unqueued: float = 0.4
    """Share of an event pair's own time that queued calls do not contain. Shares measured on an H200 range from 0.4 to
    0.6.
    """
    queued_beside_ms: float = 0.2
    """Total allowance for all queued calls, because the GPU takes up to 0.2 ms to switch between processes."""
    queue_shrink: int = 8
    """Divisor of the number of queued calls, if a stream cannot hold them all."""
    least: float = 0.85
    """Lower bound on the time of any GPU call, relative to the time of an event pair around almost no work."""
    waiting_calls: int = 8
    """Minimum difference between the numbers of calls in two batches whose times the judge subtracts."""
    waiting_batches: int = 3
    """Number of batches of each length for a kernel whose ``launch`` waits for the GPU. The judge uses the fastest
    batch.
    """
    empty_batches: int = 3
    """Number of batches of an empty kernel that measure overhead. The judge uses the least disturbed batch."""
    empty_queued: int = 4
    """Number of queued calls of an empty kernel that measure overhead. The judge uses the least disturbed call."""
    reference_slowed: float = 1.25
    """Multiple of the usual time, plus ``reference_slowed_ms``, above which the reference or memory writes count as
    slow. For the writes, the allowed excess depends on the usual time of the writes or of the reference, whichever is
    shorter.
    """
    reference_slowed_ms: float = 0.1
    """Difference in milliseconds below which times differ only by noise."""
    reference_alone_calls: int = 7
    """Number of calls to the reference without the kernel's process. The judge uses their median time."""
    reference_wait_s: float = 0.05
    """Maximum length of the pause that replaces the kernel's call when the judge times the reference alone."""
    suspicious_sol: PerDevice = PerDevice(1.25, 1.02)
    """Share of SOL above which the judge repeats an evaluation. A CPU's bandwidth varies by 20% from minute to minute.
    """
    retry_s: float = 1.0
    """Pause before the judge repeats an evaluation that failed through no fault of the kernel."""


class RunoffPolicy(Struct, frozen=True):
    """How to time leading kernels side by side."""

    least_rounds: int = 12
    """Minimum number of rounds."""
    most_rounds: int = 60
    """Maximum number of rounds."""
    budget_s: float = 2.0
    """Time after which a runoff does not start another round."""
    narrow: float = 0.01
    """Maximum half width of a kernel's interval at which the kernel's rank counts as settled."""
    sure: float = 0.999
    """Confidence at which a kernel counts as slower and needs no more rounds."""
    checked: float = 0.3
    """Share of rounds whose outputs the judge compares. A kernel cannot predict these rounds."""
    tied: PerDevice = PerDevice(0.03, 0.01)
    """Relative difference between the times of two processes that run the same code. Kernels this close to the fastest
    kernel therefore tie with it.
    """
    contradicts: float = 1.25
    """Factor between the speedup that a runoff implies and the verdicts' intervals above which the runoff is uncertain.
    Load during a runoff can slow one kernel. A CPU's bandwidth varies by 20% from minute to minute.
    """


class DevicePolicy(Struct, frozen=True):
    """How the judge uses its device."""

    untimed_up_to_ms: float = 12.0
    """Duration of a call above which cold first launches from Python make no measurable difference."""
    untimed_calls: int = 2
    """Maximum number of untimed calls before a timed call with launches from Python. For a network of 200 launches, the
    first call takes 1.6 times as long as a warm call, and the second call 1.3 times.
    """
    apart_up_to_ms: float = 150.0
    """Maximum duration of the reference's calls for which the judge gives the reference its own process. In longer
    calls, the GPU's work dominates.
    """
    apart_attempts: int = 2
    """Maximum number of processes for one reference. After this many failures, the judge times the reference itself."""
    launched_ms: float = 0.4
    """Time that a warm Python process takes to launch a call. The judge keeps the GPU busy this long before a timed
    call.
    """
    flushes_timed: int = 5
    """Number of repetitions for timing an L2 eviction."""
    least_timed: int = 20
    """Number of repetitions for timing an event pair around almost no work."""
    slots_bytes: PerDevice = PerDevice(64 * MIB, 2 * GIB)
    """Memory for buffer sets. With many sets, each call in a batch has its own buffers."""
    most_slots: PerDevice = PerDevice(64, 256)
    """Maximum number of buffer sets."""
    trial_slots: int = 4
    """Number of slots for the first trials. Reusing a slot with other inputs catches kernels that store outputs by
    address.
    """
    touched_bytes: PerDevice = PerDevice(512 * MIB, 0)
    """Memory to touch while a judge imports PyTorch, so that the first problem opens without page faults."""
    touched_share: float = 1 / 32
    """Maximum share of the machine's free memory to touch."""
    others_bytes: PerDevice = PerDevice(64 * MIB, 2 * GIB)
    """Maximum total size of the other slots. If they are larger, the judge does not check them for stray writes."""
    problems_kept: PerDevice = PerDevice(8, 8)
    """Maximum number of problems that a judge keeps open."""
    problems_least: int = 2
    """Number of problems that a judge keeps open even if they use more than ``problems_share``."""
    problems_share: float = 0.25
    """Share of a GPU's memory that open problems may use. Above this share, the judge closes problems before it opens
    another problem.
    """
    request_s: int = 900
    """Seconds for one attempt at a request, after which an alarm ends the judge."""
    eager_least: int = 7
    """Minimum number of timed calls for a baseline."""
    eager_most: int = 50
    """Maximum number of timed calls for a baseline."""
    eager_s: float = 0.5
    """Time after which the judge times no more baseline calls."""
    warm_up: int = 2
    """Number of untimed calls before the timed calls."""
    writes_ms: float = 5.0
    """Duration of memory writes that reveal leftover GPU work. GPU contexts take turns of about 2 ms."""
    compiled_s: float = 0.2
    """Minimum time for timing the ``torch.compile`` baseline."""
    compile_process_s: int = 600
    """Timeout for the process that compiles and times the ``torch.compile`` baseline."""
    copy_bytes: PerDevice = PerDevice(64 * MIB, 2 * GIB)
    """Size of the copy that measures bandwidth."""
    copy_least_bytes: int = 1 * MIB
    """Minimum size of the copy that matches a problem's size. Smaller copies would measure the overhead of a call."""
    copy_most_bytes: int = 256 * MIB
    """Maximum size of the copy that matches a problem's size."""
    matrix: PerDevice = PerDevice(1024, 8192)
    """Rows and columns of the matrices whose product measures the peak arithmetic rate."""
    convolution: tuple[int, int, int] = (4, 64, 58)
    """Number of images, number of channels and image width of the 3x3 convolution that also measures a CPU's rate. The
    data fit in an L3 cache, and the convolution is long enough to reach the rate. Smaller convolutions stay 13% below
    the rate (two cores of an AMD EPYC).
    """
    peak_least: int = 5
    """Minimum number of repetitions of the copy, of each matrix product and of the convolution. The judge uses the
    fastest repetition.
    """
    peak_most: int = 15
    """Maximum number of repetitions of the copy, of each matrix product and of the convolution."""
    peak_s: float = 0.1
    """Time limit for repetitions beyond the minimum."""
    one_product: float = 2e-3
    """Tolerance in fp32 below which one product of fp16 operands is too inexact. The largest errors of this product are
    about 1.5e-3.
    """
    exact_products: int = 3
    """Number of bf16 products that replace one fp32 product and keep errors below 1e-4. With two products, errors
    exceed 1e-3.
    """


class AdmissionPolicy(Struct, frozen=True):
    """How much device memory must be free before a judge starts a request, and how long the judge waits for this
    memory.
    """

    copies: int = 2
    """Number of copies of every tensor in the judge: in the kernels' buffers, and as drawn or expected values."""
    context_bytes: int = 1 * GIB
    """GPU memory that a process needs before it allocates tensors: context, modules, and the buffer for evicting L2."""
    processes: int = 2
    """Number of processes with a CUDA context besides the judge: the kernel's and the empty kernel's. The reference's
    process runs only if memory remains.
    """
    trials: int = 3
    """Number of trials in memory at the same time: the judge mixes two for a timed call while it draws a third."""
    fp64: int = 12
    """Free memory for an fp64 run, relative to the problem's bytes. A run may use up to half of the free memory."""
    spare: int = 3
    """Divisor of the free memory; the quotient limits the buffers for batches of short calls."""
    measure_bytes: int = 5 * GIB
    """Memory for measuring a GPU's peaks with large copies. The measurement also works with less memory."""
    whole: float = 0.85
    """Share of the device's memory, minus one context, that a judge can use if it has the device to itself.

    Each waiting judge keeps a CUDA context.
    """
    more: float = 1.25
    """Free memory required to retry a request that ran out of memory, relative to the free memory when the request
    started.
    """
    full_s: float = 5.0
    """Maximum wait for the memory that all checks need."""
    least_s: float = 60.0
    """Maximum wait for the memory that a verdict probably needs."""
    kernel_s: float = 60.0
    """Maximum wait for more memory after a kernel ran out of memory. The wait is short, because a kernel may request
    any amount of memory.
    """
    open_s: float = 600.0
    """Maximum wait for more memory after a request to open a problem or measure a device ran out of memory. This wait
    is longer than the others, because every verdict depends on these requests.
    """
    ask_s: float = 3.0
    """Time for which a judge keeps its turn while other judges release memory."""
    ask_again_s: float = 30.0
    """Time after which a judge repeats its request for memory."""
    retry_s: float = 0.5
    """Pause between two turns of a judge that is waiting for memory."""
    look_s: float = 0.2
    """Interval at which a judge without a turn checks for requests to release memory."""
    lock_s: float = 0.005
    """Pause between two attempts to lock a device."""
    name_s: float = 10.0
    """Minimum interval between two queries to the driver for the process that uses the most memory."""
    idle: float = 0.02
    """Share of a GPU's memory that an idle judge may keep while other processes wait for the device."""


class BuildPolicy(Struct, frozen=True):
    """Limits on compilers and on their output."""

    compile_s: float = 60.0
    """Timeout of a compiler."""
    module_s: float = 300.0
    """Timeout of a Python module that compiles extensions."""
    memory_bytes: int = 8 * GIB
    """Maximum address space of a process that compiles."""
    file_bytes: int = 1 * GIB
    """Maximum size of a file that a compiling process writes."""
    output_bytes: int = 8 * MIB
    """Maximum output of a compiler or module. The builder ends a process that prints more."""
    log_chars: int = 8000
    """Maximum characters of a compiler's output in a build report."""
    noticed_s: float = 0.05
    """Seconds after which a build that has not started counts as queued."""
    turn_s: float = 150.0
    """Maximum time for which a build may block timing. The limit exceeds the build's own timeouts."""
    module_turn_s: float = 900.0
    """Maximum time for which the build of a Python module may block timing."""


class LibraryPolicy(Struct, frozen=True):
    """Which kernels count as delegating their work to a library."""

    most_heavy: float = 0.25
    """Maximum share of a kernel's time in heavy library operators."""
    most: float = 0.5
    """Maximum share of a kernel's time in all library operators. Summing a kernel's partial results in PyTorch takes a
    tenth of the time.
    """
    least_named: float = 0.1
    """Share of the libraries' time below which the rejection's reason omits a library."""
    named: int = 6
    """Maximum number of names in a rejection's reason."""
    least_samples: int = 4
    """Minimum number of samples in a library's code that prove the use of the library."""
    least_reported: float = 0.25
    """Share of the samples in PyTorch's code that the profiler must explain. With a smaller share, the judge concludes
    that the kernel bypasses PyTorch's operators.
    """
    more_calls: int = 2
    """Number of extra calls on a CPU before the judge rejects a kernel. The judge uses the least disturbed call."""
    name_chars: int = 1000
    """Maximum characters of a CUDA kernel's name, which may have megabytes of template arguments."""
    section_bytes: int = 256 * KIB
    """Maximum size of a section that the judge searches for names. The CUDA runtime and device code have larger
    sections.
    """


class InputPolicy(Struct, frozen=True):
    """How the judge transforms inputs, and which structure of the draws it preserves."""

    tail: float = 1.5
    """Standard deviation of the logarithm of the heavy-tailed factors.

    With a smaller value, a sample of the elements predicts the rest too well. With a larger value, the few largest
    elements predict the rest too well.
    """
    most_tail: float = 64.0
    """Upper bound on heavy-tailed factors, close to the factor of the kind "large". With larger factors, exponentials
    would overflow.
    """
    least_structured: int = 64
    """Minimum number of elements in a structured input. With fewer elements, structure may arise by chance."""
    few_values: int = 16
    """Maximum number of distinct values in a discrete input."""
    sampled: int = 4096
    """Number of elements to sample from a tensor, enough to exclude most tensors that are not discrete."""
    same_places: float = 0.99
    """Minimum share of the zeros that must have the same positions in every draw to prove structure."""
    least_sorted: int = 8
    """Minimum number of ordered neighbors in each of two draws that prove a sorted input. Nine random values are sorted
    in both draws in one of 10^11 cases.
    """
    sum_to_one: float = 0.02
    """Maximum deviation of a row's sum from one, in low precision."""


class SandboxPolicy(Struct, frozen=True):
    """Limits on a kernel's process, the judge's timeouts for that process, and the shared buffers."""

    printed_bytes: int = 1 * MIB
    """Maximum amount of text that a kernel may print, in bytes."""
    printed_kept_bytes: int = 4096
    """Number of bytes to keep from the end of the output, which may explain why the process ended."""
    reason_chars: int = 1000
    """Maximum characters of a process's own report that a reason quotes."""
    threads: int = 1024
    """Maximum number of CPU threads in a kernel's process, plus ``threads_per_core`` for each core. The system permits
    about ten thousand threads for all processes.
    """
    threads_per_core: int = 16
    """Number of additional threads permitted per CPU core."""
    descriptors: int = 256
    """Maximum number of files that a kernel may have open. The CUDA driver needs a few dozen."""
    compiled_file_bytes: int = 2 * GIB
    """Largest file that a compiler may write for a Python kernel, in its builder or at its first call."""
    builder_memory_bytes: int = 16 * GIB
    """Maximum private memory of a builder. For large sources, nvcc needs gigabytes."""
    empty_start_s: float = 30.0
    """Timeout for each answer while the empty kernel's runner starts and loads the kernel. Other runners have the
    timeout ``deadline_s``.
    """
    python_start_s: float = 60.0
    """Timeout for the start of a Python kernel's runner."""
    call_s: float = 3.0
    """Minimum timeout of a call."""
    call_per_eager: float = 100.0
    """Timeout of a call, relative to eager's time."""
    empty_call_s: float = 10.0
    """Timeout of a call of the judge's own empty kernel. The call takes this long only on a stalled machine."""
    status_s: float = 2.0
    """Timeout for a runner's last process to exit after it has reported the kernel's end."""
    end_s: float = 5.0
    """Timeout for a killed process to disappear."""
    poll_s: float = 0.02
    """Interval at which the judge checks limits while it waits for an answer."""
    queue_s: float = 0.25
    """Time within which the runner must queue calls on the GPU; otherwise, the judge assumes that ``launch`` waits for
    the device. A normal launch takes microseconds.
    """
    awake_s: float = 0.0005
    """Time for a runner to wake up before its queued calls may run."""
    samples: int = 48
    """Number of samples of a Python kernel's running code."""
    between_samples_s: float = 0.001
    """Time for which the process runs between two samples."""
    sampled_s: float = 0.5
    """Maximum time for sampling the code. While other programs are running, stopping a process takes milliseconds."""
    least_seen: int = 24
    """Minimum number of samples that identify the owner of the running code."""
    most_sampled_s: float = 5.0
    """Maximum time for sampling on a busy machine, where ``sampled_s`` may yield too few samples."""
    stop_s: float = 0.02
    """Maximum time for a process's threads to stop. Stopping takes microseconds, unless other programs use the cores.
    """
    memory_bytes: int = 256 * MIB
    """Maximum memory of a compiled kernel, plus the memory that ``thread_bytes`` and ``per_problem`` add."""
    thread_bytes: int = 16 * MIB
    """Additional memory per thread. A Python kernel may load two OpenMP libraries, and each library's threads have
    stacks of 8 MiB.
    """
    per_problem: float = 2.0
    """Additional memory, relative to the problem's minimum memory traffic."""
    per_problem_most_bytes: int = 1 * GIB
    """Upper limit on the memory traffic that ``per_problem`` multiplies."""
    python_memory_bytes: PerDevice = PerDevice(1 * GIB, 8 * GIB)
    """Maximum memory of a Python kernel, including CUDA's host memory."""
    python_per_problem: float = 8.0
    """Additional memory for PyTorch's intermediate results, relative to the size of the problem's tensors."""
    python_per_problem_most_bytes: int = 2 * GIB
    """Upper limit on the size of the tensors that ``python_per_problem`` multiplies."""
    workspace_most_bytes: int = 1 << 46
    """Largest workspace that the runner tries to allocate, because rounding up larger sizes could overflow."""
    flush_bytes: int = 256 * MIB
    """Number of bytes that the judge or runner writes to evict the L2 cache of any GPU."""
    redzone_bytes: int = 4096
    """Size of the redzone on each side of a buffer. Most stray writes overrun a buffer by one vector or tile, which is
    narrower.
    """
    alignment_bytes: int = 4096
    """Alignment of each buffer in bytes. The interface promises an alignment of only 256 bytes."""
    guard_bytes: int = 64 * 1024
    """Size of the inaccessible memory around all buffers and after a workspace. Addresses beyond this memory are
    random.
    """
    poisons: tuple[int, int] = (0x7FFD, 0x7FFA)
    """16-bit patterns that fill outputs: NaN in fp16, bf16, fp32 and fp64, and invalid booleans. The low bytes differ.

    NaN from PyTorch's fp16 arithmetic on a CPU is negative and may have any payload.
    """
    read_part_bytes: int = 1 * MIB
    """Minimum size of the part of a Python kernel's output that one thread reads. Smaller parts cost more time than
    they save.
    """
    read_part_most_bytes: int = 1 * GIB
    """Maximum size of the part of an output that one thread reads. Linux reads up to 2 GiB in one call."""
    reported_names: int = 50
    """Maximum number of operators and kernels in a Python kernel's report, so that the report fits in one message."""
    reported_chars: int = 1000
    """Maximum number of characters per name in a Python kernel's report."""
    looked_at_ms: float = 0.004
    """Time for checking one output after a Python kernel's clock has stopped. The value comes from a measurement with
    63 outputs.
    """
    report_slack_ms: float = 0.05
    """Allowed excess of the total reported time over ``report_slack`` times the judge's own measurement."""
    report_slack: float = 1.01
    """Maximum total of the reported times, relative to the judge's own measurement. Longer times count as forged."""


class CorrectnessPolicy(Struct, frozen=True):
    """Which inputs test kernels, and which outputs pass a comparison with an fp64 run of the model."""

    slight: float = 4.0
    """Multiple of KernelBench's tolerance up to which rounding can explain an error. The verdict then does not name a
    pattern.
    """
    slight_share: float = 1e-3
    """Maximum share of wrong integers or booleans that rounding can explain."""
    blended_together: int = 1 << 17
    """Maximum number of elements in a weight that the judge mixes together with others. A network has hundreds of
    weights, so the judge mixes the small ones together.
    """
    compared_together: int = 1 << 12
    """Maximum number of elements in an output or buffer that the judge compares together with others."""
    fp64_eager_ms: float = 60.0
    """Time of a model in eager mode above which the judge does not run it in fp64. Each fp64 run would take most of a
    second.
    """
    fp64_footprint: int = 6
    """Memory of an fp64 run, relative to the problem's tensors: copies of all tensors, and intermediate results."""
    multiple: float = 4.0
    """Allowed error of an element, relative to eager's error. The errors of honest kernels vary by this factor."""
    largest: float = 2.0
    """Allowed error of any element, relative to eager's largest error, which also varies."""
    most: float = 0.1
    """Upper limit on eager's largest relative error. With larger errors, eager's outputs are close to noise."""
    vanishing: float = 1e-6
    """Share of eager's largest value up to which an output's rms in fp64 counts as zero. Eager's values are then
    rounding errors. An example is the mean of normalized values.
    """
    mean: float = 2.5
    """Allowed mean error, relative to eager's mean error. Truncating operands to TF32 causes 2.2 times the error of
    rounding.

    Rounding operands to bf16 causes 8 times the error of rounding to TF32.
    """
    harmless: float = 1 / 16
    """Mean error that passes regardless of eager's mean error, relative to the tolerance."""
    tied: float = 4.0
    """Multiple of eager's error up to which different values count as equal."""
    conditioned: float = 2.0
    """Allowed ratio of eager's errors on an input kind to eager's errors on drawn inputs. Between two draws, the errors
    differ by less.
    """
    absorbed: float = 0.75
    """Share of the tolerance below which the effect of rounding the inputs once is harmless. A kernel that rounds its
    inputs once stays within the tolerance.
    """
    conditioned_products: float = 1.25
    """Value of ``conditioned`` for the effect of rounding the inputs of fp32 products. Only small differences between
    two draws are harmless near the tolerance.
    """
    product_steps: int = 128
    """Relative change of the inputs, in machine epsilons, whose effect must fit within the tolerance, for models with
    fp32 products.

    Replacing one fp32 product with three bf16 products has the effect of about 50 machine epsilons. The largest errors
    differ by more than a factor of two between two draws of heavy-tailed inputs.
    """
    accurate: float = 1 / 8
    """Share of the tolerance below which eager's own errors are harmless. A kernel with ``multiple`` times eager's
    error stays within the tolerance, even in a draw with ``conditioned`` times this error.
    """
    steps: int = 32
    """Relative change of the inputs, in machine epsilons, for testing the model's conditioning.

    A change of one machine epsilon may swap two close values, such as softmax scores, in one draw and not in the next.
    """
    steps_bf16: int = 4
    """Relative change of bf16 inputs, in machine epsilons, for testing the model's conditioning."""
    nearby: int = 8
    """Number of eager runs on nearby inputs, which show how far rounding changes an ill-conditioned element.

    A single run may move the inputs in a direction that hardly changes the element.
    """
    nearby_choosing: int = 16
    """Number of eager runs on nearby inputs if the model computes with indices of its largest, smallest or sorted
    values.

    A run made the same choice as the kernel in 37% to 53% of all near ties of a router.
    """
    nearby_steps: int = 32
    """Relative distance between an input and its nearby copy, in machine epsilons of fp32 or fp64.

    Sequential fp32 sums of 64 terms had errors of up to 7 machine epsilons in 78 ill-conditioned trials.
    """
    nearby_steps_half: int = 1
    """Relative distance between an input and its nearby copy, in machine epsilons of fp16 or bf16. Kernels sum in fp32
    and round each value once.
    """
    hopeless: float = 100.0
    """Multiple of eager's error, after two runs on nearby inputs, above which the kernel is at fault."""
    period: int = 8191
    """Number of elements after which random numbers in a large tensor repeat; a prime. Drawing every number would take
    longer than running most models.
    """
    least_period: int = 1021
    """Shortest period of the noise added to mixed inputs, in elements."""
    noise: float = 0.1
    """Size of the noise added to mixed inputs, relative to the inputs' mean magnitude. The noise prevents kernels from
    combining earlier outputs into the new output.
    """
    turned: int = 64
    """Number of sign changes in each input of a timed call, which expose a kernel that samples its inputs."""
    least_angle: float = 0.15
    """Minimum weight of each draw in a mixture of two draws, as an angle in radians."""
    outlier_sizes: tuple[float, ...] = (16.0, 256.0, 4096.0, 65536.0)
    """Outlier magnitudes, relative to the root mean square.

    One element of the first magnitude changes the statistics of a few hundred others. The second magnitude changes a
    sum of a million squares, the third any sum of squares, and the last a sum of a million elements.
    """
    outlier_counts: tuple[int, ...] = (1, 1, 1, 2, 7)
    """Possible numbers of outliers per input. The judge draws one of these numbers.

    One outlier exposes a kernel that scales up a sample. Seven outliers expose a kernel that skips few elements.
    """
    outlier_spread: float = 0.5
    """Relative spread of outlier magnitudes, because models do not define the order of equal values."""
    outlier_tried: int = 8
    """Number of outliers per input when the judge tests a magnitude. Timed calls have fewer outliers."""
    outlier_larger: float = 1.25
    """Safety factor for testing a magnitude, because timed calls have other inputs and other outlier positions."""
    outlier_felt: float = 10.0
    """Multiple of the tolerance at which an output element's error counts as a change. Even an eighth of this error
    exceeds the tolerance.
    """
    outlier_s: float = 5.0
    """Maximum processor time in seconds for testing a problem's inputs. Inputs that remain untested get no outliers."""
    kernelbench_reference_s: float = 0.5
    """Seconds after which KernelBench trials of a slow model stop, but at least one trial runs."""
    kernelbench_s: float = 0.3
    """Seconds of calls and comparisons after which no new KernelBench trial starts."""
    sampled: int = 2048
    """Number of elements to sample when the judge estimates an input's mean magnitude."""


class PrecisionPolicy(Struct, frozen=True):
    """How to derive a precision class from errors against fp64."""

    calls: int = 3
    """Maximum number of calls whose precision the judge measures after timing."""
    calls_required: int = 8
    """Maximum number of measured calls if fp32 is required."""
    agreeing: int = 2
    """Number of measured calls that must be as imprecise as a precision class before the kernel gets this class. A sum
    near zero may make a single call imprecise by chance.
    """
    most_s: float = 0.05
    """Time after which the judge measures no more calls."""
    most_s_required: float = 0.5
    """Time after which the judge measures no more calls if fp32 is required. The judge measures at least ``agreeing``
    calls.
    """
    most_eager_ms: float = 500.0
    """Time of a model above which the judge does not measure precision, because each call needs three runs of the
    model.
    """
    most_eager_ms_required: float = 5000.0
    """Value of ``most_eager_ms`` if fp32 is required."""
    sampled: int = 1 << 14
    """Number of elements to keep and compare from each output of a timed call."""
    step: float = 2.0**-25
    """Root mean square error of rounding to fp32. If eager's error is smaller, the judge uses this value instead."""
    same: float = 4.0
    """Multiple of eager's error up to which a kernel has eager's precision class."""
    tf32: float = 2.0**-11 / 3**0.5
    """Root mean square error of rounding a value to TF32 or fp16."""
    below_tf32: float = 8.0
    """Minimum ratio of the error from rounded operands to the kernel's error, if the kernel did not round its operands.
    """
    sequential: float = 2.0**-24
    """Error of a sequential fp32 sum, divided by the square root of the sum's length. The judge estimates the length
    from the problem's shapes.
    """
    least_sequential: float = 4e-6
    """Minimum error allowed for a sequential fp32 sum: the error of ten thousand terms, even if the estimated length is
    shorter.
    """
    shows: float = 32.0
    """Multiple of eager's error that rounded operands must cause to be detectable."""
    tf32_spread: float = 3.0
    """Maximum error of truncating operands to TF32, relative to rounding to TF32."""
    bf16_spread: float = 24.0
    """Maximum error of bf16 operands, relative to rounding to TF32."""
    fp64: float = 2.0**-36
    """Upper bound on errors in fp64 sums. No fp32 sum is this precise."""


class JudgePolicy(Struct, frozen=True):
    """All of the judge's policies. :data:`POLICY` is the only instance."""

    pairs: PairPolicy = PairPolicy()
    statistics: StatisticsPolicy = StatisticsPolicy()
    clock: ClockPolicy = ClockPolicy()
    runoff: RunoffPolicy = RunoffPolicy()
    device: DevicePolicy = DevicePolicy()
    admission: AdmissionPolicy = AdmissionPolicy()
    build: BuildPolicy = BuildPolicy()
    library: LibraryPolicy = LibraryPolicy()
    inputs: InputPolicy = InputPolicy()
    sandbox: SandboxPolicy = SandboxPolicy()
    correctness: CorrectnessPolicy = CorrectnessPolicy()
    precision: PrecisionPolicy = PrecisionPolicy()


POLICY = JudgePolicy()
