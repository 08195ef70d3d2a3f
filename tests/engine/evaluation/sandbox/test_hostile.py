"""Faulty and hostile kernels get the correct verdict within their deadline and do not affect the next kernel."""

from __future__ import annotations

import pytest

from tests.engine.evaluation.conftest import Bench
from tests.engine.evaluation.kernels import softmax

# name: (code, status, part of the reason); "cu" entries replace the CPU's if the device misbehaves
CASES = {
    "loops forever": ({"after": 'for (;;) asm volatile("");'}, "timeout", "did not answer within"),
    "crashes": ({"after": "*(volatile int*)8 = 1;"}, "crashed", "SIGSEGV"),
    "allocates without bound": (
        {
            "after": """for (;;) {
                volatile char* p = (char*)malloc(1 << 24);
                for (int i = 0; p && i < 1 << 24; i += 4096) p[i] = 1;
            }"""
        },
        "memory",
        "GiB; use less memory",
    ),
    "forks": ({"after": "fork();"}, "forbidden", "start a process"),
    "starts threads without end": (
        {
            "outside": "#include <pthread.h>\nvoid* sleep_on(void*) { for (;;) pause(); }",
            "after": """pthread_attr_t small;
                pthread_attr_init(&small);
                pthread_attr_setstacksize(&small, 1 << 15);
                for (pthread_t id; pthread_create(&id, &small, sleep_on, nullptr) == 0;) usleep(20);""",
        },
        "forbidden",
        "threads",
    ),
    "executes a program": ({"after": 'execl("/bin/true", "true", (char*)0);'}, "forbidden", "start a process"),
    "writes out of bounds": ({"after": "out[x_numel + 3] = 1;"}, "out_of_bounds", "past the end of out"),
    "writes before its buffer": ({"after": "out[-2] = 1;"}, "out_of_bounds", "before the start of out"),
    "writes its inputs": ({"after": "const_cast<float*>(x)[7] = 0;"}, "wrong", "wrote to its input x"),
    "skips its tail": ({"skipped": 1}, "wrong", "1,003 of 501,500 elements of out unwritten"),
    "prints 100 MB": (
        {"after": 'for (int i = 0; i < 1000000; i++) printf("%0100d\\n", i);'},
        "forbidden",
        "printed more than 1 MiB",
    ),
    "reports failure": ({"after": "return 7;"}, "crashed", "launch returned 7"),
    "exits": ({"after": "exit(0);"}, "crashed", "exited with code 0"),
    "aborts": ({"after": "abort();"}, "crashed", "SIGABRT"),
    "throws": (
        {"outside": "#include <stdexcept>\n", "after": 'throw std::runtime_error("no tile of this size");'},
        "crashed",
        "SIGABRT ended the kernel: uncaught exception std::runtime_error: no tile of this size",
    ),
    "fails an assertion": (
        {"outside": "#include <cassert>\n", "after": "assert(x_dim0 < 0);"},
        "crashed",
        "x_dim0 < 0",
    ),
    "divides by zero": (
        {"after": "volatile int zero = 0; volatile int ten = 10 / zero; (void)ten;"},
        "crashed",
        "SIGFPE ended the kernel: it may have divided an integer by zero",
    ),
    "writes past its workspace": (
        {
            "outside": 'extern "C" size_t workspace_bytes(void) { return 4096; }\n',
            "after": "static_cast<volatile char*>(workspace)[8192] = 1;",
        },
        "crashed",
        "the 4,096-byte workspace",
    ),
}
ON_DEVICE = {
    "loops forever": ({"device": "for (;;) __nanosleep(100);"}, "timeout", "did not answer within"),
    "crashes": ({"device": "*(volatile int*)8 = 1;"}, "crashed", "illegal memory access"),
    "writes out of bounds": (
        {"device": "if (!threadIdx.x) out[x_numel + 3] = 1;"},
        "out_of_bounds",
        "past the end of out",
    ),
    "writes before its buffer": ({"device": "if (!threadIdx.x) out[-2] = 1;"}, "out_of_bounds", "before the start"),
    "writes its inputs": ({"device": "const_cast<float*>(x)[7] = 0;"}, "wrong", "wrote to its input x"),
    "writes past its workspace": (
        {
            "outside": 'extern "C" size_t workspace_bytes(void) { return 4096; }\n',
            "after": "cudaMemsetAsync(static_cast<char*>(workspace) + (1ll << 40), 0, 4, stream);",
        },
        "crashed",
        "",
    ),
    "takes too much shared memory": (
        {"after": "rows<<<1, 256, 1 << 20, stream>>>(x, out);"},
        "crashed",
        "launch returned",
    ),
}


def case(language: str, name: str) -> tuple[dict[str, object], str, str]:
    return ON_DEVICE[name] if language == "cu" and name in ON_DEVICE else CASES[name]


@pytest.mark.parametrize("name", list(CASES))
def test_a_hostile_kernel_gets_its_verdict_and_the_next_one_is_unaffected(bench: Bench, name: str) -> None:
    code, status, reason = case(bench.language, name)
    verdict = bench.judge(softmax(bench.language, **code))  # type: ignore[arg-type]
    assert verdict.status == status, verdict.reason
    assert reason in verdict.reason
    assert bench.judge(softmax(bench.language)).correct


def test_a_launch_that_fails_on_the_device_is_reported(bench: Bench) -> None:
    if bench.language != "cu":
        pytest.skip("only a GPU launches")
    code, status, reason = ON_DEVICE["takes too much shared memory"]
    verdict = bench.judge(softmax("cu", **code))  # type: ignore[arg-type]
    assert (verdict.status, reason in verdict.reason) == (status, True), verdict.reason


def test_device_memory_taken_without_bound_does_not_hurt_the_next(bench: Bench) -> None:
    if bench.language != "cu":
        pytest.skip("only a GPU has device memory")
    greedy = "void* p; while (cudaMalloc(&p, 1 << 28) == cudaSuccess) cudaMemsetAsync(p, 1, 1 << 28, stream);"
    verdict = bench.judge(softmax("cu", after=greedy))
    assert verdict.status in ("memory", "crashed", "timeout"), verdict.reason
    assert bench.judge(softmax("cu")).correct


def test_the_network_and_the_file_system_are_out_of_reach(bench: Bench) -> None:
    look = """
    if (socket(AF_INET, SOCK_STREAM, 0) >= 0) return 21;
    if (open("/etc/passwd", O_RDONLY) >= 0) return 22;
    if (open("/tmp/kernel-was-here", O_CREAT | O_WRONLY, 0600) >= 0) return 23;
    if (kill(getppid(), 0) == 0) return 24;
    if (unshare(CLONE_NEWNET) == 0) return 25;
    """
    headers = "#include <fcntl.h>\n#include <sched.h>\n#include <signal.h>\n#include <sys/socket.h>\n"
    assert bench.judge(softmax(bench.language, before=look, outside=headers)).correct
