"""Evaluation: build, judge, runner. A verdict rests on nothing that a candidate kernel could alter."""
