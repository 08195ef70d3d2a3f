"""Compute a standalone program's inputs and expected outputs. This child process reads a :class:`ProblemSpec` from
standard input, as JSON, and writes an :class:`Expected` to standard output, as MessagePack. NumPy fills the tensors,
and PyTorch runs the reference.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec
import numpy
import torch
from torch.func import functional_call

from engine.export.standalone.numbers import CHUNK, PLACES, Expected, Filling, bits
from engine.problem.model import OnDevice, build_model, flatten, named_weights, output_leaves
from engine.problem.source import ProblemModule
from engine.problem.spec import ProblemSpec

SEED = 20_240_229


def main() -> None:
    problem = msgspec.json.decode(sys.stdin.buffer.read(), type=ProblemSpec)
    answer = os.dup(1)
    os.dup2(2, 1)  # A problem file may print to standard output.
    with os.fdopen(answer, "wb") as out:
        out.write(msgspec.msgpack.encode(expected(problem)))  # JSON has no infinities.


def expected(problem: ProblemSpec) -> Expected:
    """Generate tensors with the statistics of the problem's own tensors, and run the reference on them."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = ProblemModule(problem.source, problem.path)
    with OnDevice("cpu"), torch.no_grad():
        model, _ = build_model(module)
        leaves, structure = flatten(module.get_inputs())
    weights = named_weights(model)
    samples = [leaf for leaf in leaves if torch.is_tensor(leaf)] + [value for _, value, _ in weights]
    fillings = [_filling(sample, SEED * (number + 1)) for number, sample in enumerate(samples)]
    filled = [_filled(sample, one).to(device) for sample, one in zip(samples, fillings, strict=True)]
    given = iter(filled)
    inputs = [next(given) if torch.is_tensor(leaf) else leaf for leaf in leaves]
    state = {name: next(given) for name, _, _ in weights}
    arguments = torch.utils._pytree.tree_unflatten(inputs, structure)
    with OnDevice(device), torch.no_grad():
        results = output_leaves(functional_call(model.to(device), state, tuple(arguments)))
    places, values = [], []
    for number, result in enumerate(one for one in results if torch.is_tensor(one)):
        flat = result.contiguous().view(-1).cpu()
        count = min(PLACES, flat.numel())
        chosen = sorted({int(one) % flat.numel() for one in bits(numpy, 0, count, number + 1)})
        places.append(tuple(chosen))
        values.append(tuple(float(flat[place]) for place in chosen))
    return Expected(tuple(fillings), tuple(places), tuple(values))


def _filling(sample: torch.Tensor, seed: int) -> Filling:
    """Describe a sample of numbers by its mean and standard deviation or, for integers, by its range."""
    if not sample.dtype.is_floating_point:
        low, high = (int(sample.min()), int(sample.max())) if sample.numel() else (0, 0)
        return Filling(seed, low=low, span=high - low + 1)
    some = sample.detach().flatten()[: 1 << 20].double()
    mean, deviation = float(some.mean()), float(some.std(correction=0))
    return Filling(seed, mean=mean, width=deviation * 12**0.5)


def _filled(sample: torch.Tensor, filling: Filling) -> torch.Tensor:
    made = torch.empty(sample.numel(), dtype=sample.dtype)
    for start in range(0, sample.numel(), CHUNK):
        count = min(CHUNK, sample.numel() - start)
        random = bits(numpy, start, count, filling.seed)
        numbers: Any
        if sample.dtype.is_floating_point:
            unit = (random >> numpy.uint64(40)).astype(numpy.float64) / 2.0**24
            numbers = filling.mean + (unit - 0.5) * filling.width
            if sample.dtype != torch.float64:
                numbers = numbers.astype(numpy.float32)
        else:
            numbers = (random % numpy.uint64(filling.span)).astype(numpy.int64) + filling.low
        made[start : start + count] = torch.from_numpy(numbers).to(sample.dtype)
    return made.view(sample.shape)


if __name__ == "__main__":
    main()
