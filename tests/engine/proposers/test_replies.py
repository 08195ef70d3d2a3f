"""Replies of language models are used, or rejected with a one-sentence reason."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.problem.spec import Language
from engine.proposers.categories import CATEGORY_NAMES
from engine.proposers.llm.model_protocol import Reply
from engine.proposers.llm.replies import MAX_KERNEL_CHARS, Unusable, clean, read_ideas, read_kernel
from engine.session.records.model_calls import Finish
from tests.engine.proposers import canned

KERNEL = canned.good("the one")


def reply(text: str, finish: Finish = "stop") -> Reply:
    return Reply(text, "m", None, finish)


def reason(text: str, finish: Finish = "stop", language: Language = "cpp") -> str:
    with pytest.raises(Unusable) as caught:
        read_kernel(reply(text, finish), language)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 300
    return message


@pytest.mark.parametrize(
    "text",
    [
        canned.block(KERNEL),
        canned.block(KERNEL, ""),
        canned.block(KERNEL, "c++"),
        canned.block(KERNEL, "{.cpp}"),
        canned.block(KERNEL).replace("\n", "\r\n"),
        canned.block(KERNEL).replace("```", "~~~~"),
        f"First how to build it:\n```bash\nmake\n```\n{canned.block(KERNEL)}And a detail:\n```cpp\nint x;\n```\n",
        canned.block(KERNEL) + "Once more:\n" + canned.block(KERNEL),
        KERNEL,
        canned.block(KERNEL.rstrip()),
        canned.block(KERNEL.rstrip()) + "This kernel needs `launch(x)` only.\n",
        f"<think>A draft:\n{canned.block(canned.divides('b'))}</think>\n\n{canned.block(KERNEL)}",
        f"A draft:\n```cpp\nint x;\n</think>{canned.block(KERNEL)}",
        f"<think>{'So. ' * 200_000}</think>\n{KERNEL}",
        f"{canned.block(KERNEL)}</think>\n",
        f'The header:\n```cpp\nextern "C" int launch(const float* x, float* out, void*);\n```\n{canned.block(KERNEL)}',
        f"{canned.block(KERNEL)}A call:\n```cpp\nif (launch(x, out, nullptr)) {{\n    return 1;\n}}\n```\n",
        f"{canned.block(KERNEL)}```cpp\n// A helper for launch() {{\nfloat twice(float a) {{ return 2 * a; }}\n```\n",
    ],
)
def test_a_kernel_is_found_in_what_stands_around_it(text: str) -> None:
    assert read_kernel(reply(text), "cpp") == KERNEL


@pytest.mark.parametrize("line", ["using real = float;", "static int calls;", "constexpr int TILE = 64;"])
def test_a_kernel_without_a_fence_may_begin_with_any_declaration(line: str) -> None:
    assert read_kernel(reply(f"{line}\n{KERNEL}"), "cpp") == f"{line}\n{KERNEL}"


def test_a_triton_kernel_without_a_fence_may_begin_with_its_decorator() -> None:
    source = "@triton.jit\ndef twice(x): ...\n\nclass ModelNew(torch.nn.Module): ...\n"
    assert read_kernel(reply(source), "triton") == source


@pytest.mark.parametrize(
    ("text", "finish", "words"),
    [
        ("Here is my plan: use launch(x) well.", "stop", "no fenced code block"),
        ("using shared memory, the call launch(x) is fast", "stop", "no fenced code block"),
        (f"<think>A draft:\n{canned.block(KERNEL)}And then", "length", "before the model had finished its reasoning"),
        ("```cpp\n// usage: ```launch(x)```\n" + KERNEL, "stop", "cut off before the end of its block"),
        ("", "stop", "empty"),
        ("", "length", "the model reached the output limit"),
        (canned.block(KERNEL) + canned.block(canned.divides("b")), "stop", "2 different kernels"),
        (
            canned.block(KERNEL) + canned.block(KERNEL.replace("x,", "x, // (rows);\n", 1)),
            "stop",
            "2 different kernels",
        ),
        (canned.block("int launch(int);\n") + canned.block("int launch(float);\n"), "stop", "2 different kernels"),
        (
            canned.block("import torch\nclass ModelNew: ...\n", "python"),
            "stop",
            "is python, but the kernel must be C++",
        ),
        (canned.block("int main() { return 0; }\n"), "stop", "no code block in the reply defines launch"),
        (canned.block(KERNEL)[:400], "length", "cut off at the output limit"),
        (canned.block(KERNEL)[:400], "stop", "cut off before the end of its block"),
        ("I can't assist.", "refusal", "the model refused"),
        ("<!DOCTYPE html>\n<html><body>502 Bad Gateway</body></html>", "stop", "HTML"),
        ("a" * 5_000_000, "stop", "5,000,000 characters"),
        (canned.block(KERNEL + "//" + "x" * MAX_KERNEL_CHARS + "\n"), "stop", "characters; the limit"),
    ],
)
def test_what_holds_no_kernel_says_why(text: str, finish: Finish, words: str) -> None:
    assert words in reason(text, finish)


def test_a_python_kernel_is_a_module_with_the_new_model() -> None:
    source = "import torch\n\nclass ModelNew(torch.nn.Module):\n    pass\n"
    assert read_kernel(reply(canned.block(source, "python")), "py") == source
    assert "must be Python" in reason(canned.block(KERNEL), language="py")


@pytest.mark.parametrize(
    "text",
    [
        canned.ideas(*canned.IDEAS[:2]),
        f"Here they are:\n```json\n{canned.ideas(*canned.IDEAS[:2])}\n```\nDone {{}}.",
        json.dumps([{"text": text, "category": "Memory Access"} for text in canned.IDEAS[:2]]),
        "\n".join(json.dumps({"text": text, "category": "memory"}) for text in canned.IDEAS[:2]),
        canned.ideas(*canned.IDEAS[:3])[:-70],
        f"<think>{canned.ideas('A draft.')}</think>\n{canned.ideas(*canned.IDEAS[:2])}",
    ],
)
def test_ideas_are_found_in_what_stands_around_them(text: str) -> None:
    found = read_ideas(reply(text), 2)
    assert [idea.text for idea in found] == list(canned.IDEAS[:2])
    assert {idea.category for idea in found} == {"memory"}


@pytest.mark.parametrize(
    ("text", "ideas"),
    [
        ('{"ideas": [{"text": "Tiles\nof 64."}]}', ["Tiles of 64."]),
        ('{"ideas": [{"text": "Tiles of 64.",},\n]}', ["Tiles of 64."]),
        (r'{"ideas": [{"text": "Split x\_dim \\ by \u0034 in \units."}]}', [r"Split x\_dim \ by 4 in \units."]),
        ('{"ideas": [{"text": "Sum a[i, ]."}, {"text": "Tiles of 64.",}]}', ["Sum a[i ].", "Tiles of 64."]),
        ('{"ideas": [{"text": "Sum a[i, ]."}]}', ["Sum a[i, ]."]),
    ],
)
def test_ideas_in_slightly_invalid_json_are_read_and_valid_ones_keep_their_text(text: str, ideas: list[str]) -> None:
    assert [idea.text for idea in read_ideas(reply(text), 3)] == ideas


@pytest.mark.parametrize(
    ("variants", "read"),
    [
        (["Tiles of 64.", " Tiles of\n128. ", "", 7], ("Tiles of 64.", "Tiles of 128.")),
        ("Tiles of 64.", ()),
        (None, ()),
        (["x" * 2_000] * 99, ("x" * 600,) * 8),
    ],
)
def test_variants_of_an_idea_are_kept_if_they_are_texts(variants: object, read: tuple[str, ...]) -> None:
    (idea,) = read_ideas(reply(json.dumps({"ideas": [{"text": "Do it.", "variants": variants}]})), 1)
    assert idea.variants == read


@pytest.mark.parametrize(
    ("text", "finish", "words"),
    [
        ("Use shared memory.", "stop", "contains no JSON"),
        ('{"ideas": []}', "stop", "contains no idea"),
        ('{"ideas": [{"category": "memory", "te', "length", "cut off"),
        ('{"ideas": "none"}', "stop", "contains no idea"),
        ("[" * 100_000, "stop", "contains no idea"),
        ("<html>Sign in</html>", "stop", "HTML"),
    ],
)
def test_what_holds_no_idea_says_why(text: str, finish: Finish, words: str) -> None:
    with pytest.raises(Unusable, match=words):
        read_ideas(reply(text, finish), 3)


PIECES = st.sampled_from(
    [
        *("```", "```cpp\n", "\n```\n", "~~~", "{", "[", '{"ideas": [', '"text": "', '"}', "]}", "launch(", "<html>"),
        *("\ud800", "\x00", "\r", "\n", "class ModelNew", "python", "```python\n", 'extern "C"', "\u2028", "</think>"),
    ]
)
FINISHES: st.SearchStrategy[Finish] = st.sampled_from(["stop", "length", "refusal"])


@settings(max_examples=150, deadline=None)
@given(st.lists(st.one_of(PIECES, st.text(max_size=20)), max_size=40).map("".join), FINISHES)
def test_any_reply_is_used_or_refused(text: str, finish: Finish) -> None:
    for language in ("cpp", "cu", "py"):
        try:
            source = read_kernel(reply(text, finish), language)
        except Unusable as error:
            assert str(error)
            assert "\n" not in str(error)
        else:
            assert source.encode() and "\x00" not in source
    try:
        ideas = read_ideas(reply(text, finish), 4)
    except Unusable as error:
        assert str(error)
    else:
        assert 1 <= len(ideas) <= 4
        assert all(idea.text.encode() and idea.category in CATEGORY_NAMES for idea in ideas)
    assert clean(clean(text)) == clean(text)


@pytest.mark.parametrize(
    "unit",
    ["`", "```\n", "{", "[{", '{"text": "', "<", " ", "~", "\n", "```cpp\nlaunch(\n", "launch(", "/*", "\\", ","],
)
def test_no_reply_takes_long_to_read(unit: str) -> None:
    text = (unit * 400_000)[:399_000]
    second = f"```\nlaunch()\n```\n```\nlaunch({text}"
    began = time.process_time()
    for read in (
        lambda: read_kernel(reply(text), "cu"),
        lambda: read_kernel(reply(second), "cu"),
        lambda: read_ideas(reply(text), 4),
    ):
        try:
            read()
        except Unusable:
            continue
    assert time.process_time() - began < 10.0
