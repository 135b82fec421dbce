from __future__ import annotations

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from behaviortrace.capture import CountSketch, device, kernels
from behaviortrace.capture.layout import slots_of
from behaviortrace.errors import BehaviorTraceError
from tests.reference import countsketch as reference

HASHES = ["block", "coordinate"]
SHAPES = [(3, 7), (64,), (5, 13, 2), (1,), (129,)]


def tensors(seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for shape in SHAPES]


@pytest.mark.parametrize("hash_", HASHES)
@pytest.mark.parametrize("dim", [64, 256, 65_536])
def test_equals_the_slow_reference(hash_: str, dim: int) -> None:
    found = CountSketch(dim, seed=7, hash=hash_).sketch(tensors())
    wanted = reference.sketch(hash_, 7, dim, [t.numpy() for t in tensors()])
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-5)


@given(
    seed=st.integers(0, 2**63),
    shapes=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=5),
    hash_=st.sampled_from(HASHES),
)
@settings(max_examples=40, deadline=None)
def test_any_seed_and_shapes(seed: int, shapes: list[list[int]], hash_: str) -> None:
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(*shape, generator=generator) for shape in shapes]
    found = CountSketch(128, seed=seed, hash=hash_).sketch(values)
    wanted = reference.sketch(hash_, seed, 128, [v.numpy() for v in values])
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-4)


@pytest.mark.parametrize("hash_", HASHES)
def test_torch_operations_agree_with_the_compiled_loops(hash_: str) -> None:
    sketch = CountSketch(256, seed=3, hash=hash_)
    slots = slots_of([(str(i), shape) for i, shape in enumerate(SHAPES)])
    out = torch.zeros(1, 256)
    for slot, tensor in zip(slots, tensors(), strict=True):
        device.add(sketch.buckets, out, tensor.reshape(1, -1), slot)
    np.testing.assert_allclose(out[0], sketch.sketch(tensors()), atol=1e-5)


@pytest.mark.parametrize("hash_", HASHES)
def test_positions_agree_with_a_dense_table(hash_: str) -> None:
    sketch = CountSketch(512, seed=2, hash=hash_)
    _, table = slots_of([("first", (10,)), ("table", (11, 24))])
    rng = np.random.default_rng(0)
    ids = np.array([[3, 3, 0], [10, -1, 5]])
    values = rng.normal(size=(2, 3, 24)).astype(np.float32)
    dense = np.zeros((2, 11, 24), np.float32)
    for row in range(2):
        for t in range(3):
            if ids[row, t] >= 0:
                dense[row, ids[row, t]] += values[row, t]
    wanted = sketch.accumulators(2)
    sketch.add(wanted, dense.reshape(2, -1), table)
    found = sketch.accumulators(2)
    sketch.add_positions(found, values, ids, table)
    np.testing.assert_allclose(sketch.fold(found), sketch.fold(wanted), atol=1e-5)
    on_device = torch.zeros(2, 512)
    device.add_positions(
        sketch.buckets, on_device, torch.from_numpy(values), torch.from_numpy(ids), table
    )
    np.testing.assert_allclose(on_device, sketch.fold(wanted), atol=1e-5)


@pytest.mark.parametrize("hash_", HASHES)
def test_linear(hash_: str) -> None:
    sketch = CountSketch(256, hash=hash_)
    a, b = tensors(1), tensors(2)
    both = sketch.sketch([2 * x - 3 * y for x, y in zip(a, b, strict=True)])
    np.testing.assert_allclose(both, 2 * sketch.sketch(a) - 3 * sketch.sketch(b), atol=1e-4)


def test_kronecker_equals_the_slow_reference() -> None:
    shapes = [(70, 9), (130,), (3, 200), (4, 2, 3), (1, 1)]
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(*shape, generator=generator) for shape in shapes]
    for dim in (4096, 8192):
        found = CountSketch(dim, seed=11, hash="kronecker").sketch(values)
        wanted = reference.sketch("kronecker", 11, dim, [v.numpy() for v in values])
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-5)


@pytest.mark.parametrize("start", [0, 64])
def test_kronecker_takes_factors_for_the_whole(start: int) -> None:
    sketch = CountSketch(4096, seed=1, hash="kronecker")
    _, slot = slots_of([("first", (3,)), ("w", (150, 48))])
    generator = torch.Generator().manual_seed(2)
    left = torch.randn(3, 5, 150 - start, generator=generator)
    right = torch.randn(3, 5, 48, generator=generator)
    whole = torch.bmm(left.transpose(1, 2), right).flatten(1)
    wanted, squares = sketch.accumulators(3), np.zeros(3)
    sketch.add(wanted, whole.numpy(), slot, start * 48, squares)
    np.testing.assert_allclose(squares, whole.square().sum(1), rtol=1e-5)
    found = torch.zeros(3, 4096)
    sketch.grid.add_outer(found, slot, left, right, start * 48)
    np.testing.assert_allclose(found, sketch.fold(wanted), atol=1e-4)


@pytest.mark.parametrize("count", [1, 6])
def test_kronecker_has_the_mean_and_variance_of_theory(count: int) -> None:
    """Over hash seeds, for outer products g x^T and h y^T in so many matrices.

    In one matrix the estimate is a product of two independent ones; between two matrices, which
    share the grid, coordinates collide as under any hash.
    """
    rng, dim, seeds = np.random.default_rng(3), 16_384, 200
    g, h = rng.normal(size=(2, count, 192))
    x = rng.normal(size=(count, 256))
    y = x + 0.5 * rng.normal(size=x.shape)  # inputs of two rollouts are alike, as in a model
    lefts, rights = (
        [torch.from_numpy(np.einsum("ka,kb->kab", *pair).astype(np.float32)) for pair in both]
        for both in (((g, x),), ((h, y),))
    )
    found = np.empty(seeds)
    for seed in range(seeds):
        sketch = CountSketch(dim, seed=seed, hash="kronecker")
        one, two = (sketch.sketch(list(values[0])).double() for values in (lefts, rights))
        found[seed] = float(one @ two)

    def moments(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of a short sketch's inner products, matrix by matrix."""
        dot, same = (a * b).sum(1), (a * a * b * b).sum(1)
        return dot, ((a * a).sum(1) * (b * b).sum(1) + dot**2 - 2 * same) / dim**0.5

    (m, v), (n, w) = moments(g, h), moments(x, y)
    dots = m * n
    sizes = [(a * a).sum(1) * (b * b).sum(1) for a, b in ((g, x), (h, y))]
    within = (m**2 + v) * (n**2 + w) - dots**2
    across = (np.outer(*sizes) + np.outer(dots, dots)) / dim
    variance = within.sum() + across.sum() - np.trace(across)
    error = (found - dots.sum()) / np.sqrt(variance)
    assert abs(error.mean()) < 4 / np.sqrt(seeds)
    # Coordinates of one block never collide: of 256 columns a quarter of the pairs.
    assert 0.55 < error.var() < 1.35


def shaped(kind: str, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of vectors that could hurt a hash that is not random enough."""
    a, b = rng.normal(size=(2, n))
    if kind == "heavy-tailed":
        a, b = a / np.abs(rng.normal(size=n)) ** 0.5, b / np.abs(rng.normal(size=n)) ** 0.5
    elif kind == "striped":  # a few outlier columns of a (n / 96, 96) matrix
        gain = np.where(np.arange(n) % 96 < 3, 20.0, 0.1)
        a, b = a * gain, b * gain
    elif kind == "low-rank":
        left, right = rng.normal(size=n // 96), rng.normal(size=96)
        a = np.outer(left, right).reshape(-1)
        b = np.outer(rng.normal(size=n // 96), right).reshape(-1)
    elif kind == "one run":  # all energy in 256 neighbours
        gain = np.where(np.arange(n) < 256, 1.0, 1e-3)
        a, b = a * gain, b * gain
    return a, b


@pytest.mark.parametrize("hash_", HASHES)
@pytest.mark.parametrize("kind", ["normal", "heavy-tailed", "striped", "low-rank", "one run"])
def test_inner_products_have_the_mean_and_variance_of_theory(hash_: str, kind: str) -> None:
    """Over hash seeds: mean a.b; variance (|a|^2 |b|^2 + (a.b)^2 - 2 sum a^2 b^2) / dim."""
    n, dim, seeds = 96 * 64, 256, 600
    a, b = shaped(kind, n, np.random.default_rng(4))
    pair = [torch.from_numpy(v.astype(np.float32)).reshape(-1, 96) for v in (a, b)]
    found = np.empty(seeds)
    for seed in range(seeds):
        sketch = CountSketch(dim, seed=seed, hash=hash_)
        x, y = sketch.sketch([pair[0]]), sketch.sketch([pair[1]])
        found[seed] = float(x.double() @ y.double())
    dot, squares = a @ b, (a**2 * b**2).sum()
    variance = ((a @ a) * (b @ b) + dot**2 - 2 * squares) / dim
    error = (found - dot) / np.sqrt(variance)
    assert abs(error.mean()) < 4 / np.sqrt(seeds)
    # Coordinates of one block never collide, which can only take variance away.
    low = 0.8 if hash_ == "coordinate" else (0.6 if kind == "one run" else 0.75)
    assert low < error.var() < 1.3


def test_does_not_depend_on_threads() -> None:
    sketch, found = CountSketch(1024), []
    rows = np.random.default_rng(0).normal(size=(5, 4096)).astype(np.float32)
    (slot,) = slots_of([("w", (64, 64))])
    kept = numba.get_num_threads()
    for threads in range(1, kept + 1):
        numba.set_num_threads(threads)
        out = sketch.accumulators(5)
        sketch.add(out, rows, slot)
        found.append(out)
    numba.set_num_threads(kept)
    assert all(np.array_equal(found[0], other) for other in found)


def test_kronecker_refuses_a_grid_that_is_too_small() -> None:
    with pytest.raises(BehaviorTraceError, match="2048"):
        CountSketch(2048, hash="kronecker")


@pytest.mark.parametrize("dim", [0, 32, 100, -64])
def test_refuses_a_dim_that_is_no_power_of_two(dim: int) -> None:
    with pytest.raises(BehaviorTraceError, match=str(dim)):
        CountSketch(dim)


def test_refuses_an_unknown_hash() -> None:
    with pytest.raises(BehaviorTraceError, match="md5"):
        CountSketch(64, hash="md5")  # type: ignore[arg-type]  # the mistake under test


@pytest.mark.parametrize(("rows", "n"), [(1, 5), (3, 4096), (4, 10_001), (8, 70_000)])
def test_weighted_sums_are_those_of_a_matrix_product_on_any_threads(rows: int, n: int) -> None:
    rng = np.random.default_rng(rows)
    values = rng.normal(size=(rows, n)).astype(np.float32)
    weight = rng.normal(size=rows).astype(np.float32)
    found = []
    for threads in (1, 2):
        kernels.use_threads(threads)
        total = np.full(n, np.nan, np.float32)
        kernels.weighted_sum(total, values, weight)
        found.append(total)
    exact = weight.astype(np.float64) @ values.astype(np.float64)
    np.testing.assert_allclose(found[0], exact, atol=2e-6)
    assert found[0].tobytes() == found[1].tobytes()
