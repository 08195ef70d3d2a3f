"""Messages of compilers and runners name the user's own file."""

from __future__ import annotations

import pytest

from engine.session.records.verdict import BuildReport, Verdict
from tui.console.file_names import in_own_words, of_own_file


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("kernel.cpp:3:5: error: no", "my soft\\1.cpp:3:5: error: no"),
        ("In file included from kernel.cpp:1,", "In file included from my soft\\1.cpp:1,"),
        ('errors in the compilation of "kernel.cu".', 'errors in the compilation of "my soft\\1.cpp".'),
        ("kernel.cu(10): error", "my soft\\1.cpp(10): error"),
        ("g++ -include problem.h kernel.cpp -o kernel.so", "g++ -include problem.h my soft\\1.cpp -o kernel.so"),
        ("never closed (kernel.py, line 4)", "never closed (my soft\\1.cpp, line 4)"),
        ("other_kernel.cpp:3: see sub/kernel.cpp:4 and kernel.cpp_t", None),
    ],
)
def test_the_name_is_put_where_the_file_is_meant(said: str, shown: str | None) -> None:
    assert in_own_words(said, "my soft\\1.cpp") == (shown or said)


def test_a_whole_verdict_speaks_of_the_file() -> None:
    build = BuildReport(False, 0.1, "g++ kernel.cpp -o kernel.so", False, "kernel.cpp:1:1: error: no")
    told = of_own_file(Verdict(status="build_error", reason="kernel.cpp:1:1: error: no", build=build), "mine.cpp")
    assert told.reason == "mine.cpp:1:1: error: no"
    assert told.build is not None and (told.build.command, told.build.log) == (
        "g++ mine.cpp -o kernel.so",
        "mine.cpp:1:1: error: no",
    )
