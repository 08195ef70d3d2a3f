"""The order in which waiting kernels get a device."""

from __future__ import annotations

from engine.devices.waiting_line import MOST_OVERTAKEN, KeptProblems, Waiting, first_in_line, leave_line


def test_a_judge_keeps_the_problems_that_it_used_last() -> None:
    kept = KeptProblems(2)
    for problem in ("softmax", "conv2d", "softmax", "matmul"):
        kept.add(problem)
    assert set(kept) == {"softmax", "matmul"}
    kept.clear()
    assert not kept


def test_kernels_of_open_problems_come_first_then_those_that_no_device_has_open() -> None:
    elsewhere, nowhere, here, later = (
        Waiting(1, "elsewhere"),
        Waiting(2, "nowhere"),
        Waiting(3, "here"),
        Waiting(4, "here"),
    )
    line = [later, elsewhere, here, nowhere]
    served = []
    while line:
        served.append(first_in_line(line, {"here"}, {"elsewhere"}))
        leave_line(line, served[-1])
    assert served == [here, later, nowhere, elsewhere]


def test_a_kernel_waits_for_a_limited_number_of_younger_kernels() -> None:
    old = Waiting(0, "other")
    line = [old]
    for ticket in range(1, 100):
        line.append(Waiting(ticket, "open"))
        served = first_in_line(line, {"open"})
        leave_line(line, served)
        if served is old:
            break
    assert ticket == MOST_OVERTAKEN + 1


def test_without_open_problems_the_oldest_comes_first() -> None:
    line = [Waiting(2, "b"), Waiting(1, "a"), Waiting(3, None)]
    assert [first_in_line(line, ()).ticket, first_in_line(line[:2], ()).ticket] == [3, 1]
