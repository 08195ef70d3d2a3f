from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from engine.problem.names import Names, identifier, slug
from tests.patience import PATIENCE_S


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("ln.weight", "ln_weight"),
        ("conv2d", "conv2d"),
        ("float", "float_"),
        ("gamma", "gamma_"),
        ("2d.weight", "t_2d_weight"),
        ("_cache", "t_cache"),
        ("a__b", "a_b"),
        ("größe", "gr_e"),
    ],
)
def test_identifiers_are_safe_in_cpp(given: str, wanted: str) -> None:
    assert identifier(given) == wanted


def test_names_do_not_collide_with_each_other_or_with_constants() -> None:
    names = Names()

    assert names.take_tensor("x", 2) == "x"
    assert names.take_tensor("x", 1) == "x_v2"
    assert names.take("x_dim1") == "x_dim1_v2"
    assert names.take_tensor("ln.weight", 1) != names.take_tensor("ln_weight", 1)


def test_a_constant_may_have_any_name_beside_the_usual_headers(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++")
    words = "gamma index time y0 j1 div abs round floor norm bind signal alpha beta eps dim stride scale size groups"
    source = tmp_path / "kernel.cpp"
    constants = "".join(f"constexpr double {identifier(word)} = 1;\n" for word in words.split())
    includes = ["math.h", "stdlib.h", "string.h", "strings.h", "time.h", "unistd.h", "signal.h", "omp.h", "immintrin.h"]
    source.write_text(constants + "".join(f"#include <{name}>\n" for name in includes))

    result = subprocess.run(
        [compiler, "-fsyntax-only", str(source)], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )

    assert result.returncode == 0, result.stderr


def test_slugs_are_safe_as_file_names() -> None:
    assert slug("23_Softmax") == "23_softmax"
    assert slug("../Ünsafe name!") == "nsafe_name"
