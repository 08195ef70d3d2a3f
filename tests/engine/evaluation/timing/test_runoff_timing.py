"""A runoff ranks kernels by their times within rounds."""

from __future__ import annotations

from engine.evaluation.timing.runoff_timing import standings


def test_a_kernel_whose_batches_were_disturbed_has_an_uncertain_place() -> None:
    """The judge adds the excess of disturbed batches to every round, so the rounds alone seem to agree."""
    times_ms = {"v1": [1.0, 1.01, 0.99] * 4, "copy": [1.85, 1.86, 1.84] * 4}
    fastest, slower = standings(times_ms, 0.03, {"copy"})
    assert (fastest.variant, fastest.uncertain, fastest.decides) == ("v1", False, True)
    assert (slower.variant, slower.uncertain, slower.tied, slower.decides) == ("copy", True, False, False)
    assert not any(one.uncertain for one in standings(times_ms, 0.03))
