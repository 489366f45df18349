"""Quantiles and histograms, against numpy's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from osmosis_ai.eval.distribution import BINS, Bin, describe_distribution


def test_nothing_has_no_distribution() -> None:
    assert describe_distribution([]) is None


@pytest.mark.parametrize("size", [1, 2, 11, 500])
def test_it_is_as_numpy_has_it(size: int) -> None:
    values = np.random.default_rng(size).exponential(size=size)
    found = describe_distribution(values.tolist())
    assert found is not None
    assert (found.minimum, found.maximum) == (values.min(), values.max())
    assert found.std == pytest.approx(values.std())
    expected = np.percentile(values, [5, 25, 50, 75, 95])
    assert list(found.quantiles) == ["p5", "p25", "p50", "p75", "p95"]
    assert list(found.quantiles.values()) == pytest.approx(list(expected))
    assert sum(part.count for part in found.histogram) == size


def test_many_different_values_are_counted_in_equal_parts() -> None:
    values = np.random.default_rng(4).normal(size=300)
    found = describe_distribution(values.tolist())
    counts, edges = np.histogram(values, bins=BINS)
    assert found is not None
    assert [part.count for part in found.histogram] == counts.tolist()
    assert [part.low for part in found.histogram] == pytest.approx(list(edges[:-1]))
    assert [part.high for part in found.histogram] == pytest.approx(list(edges[1:]))


def test_a_value_on_an_edge_belongs_to_the_part_above_it() -> None:
    found = describe_distribution([float(value) for value in range(11)])
    assert found is not None
    assert [part.count for part in found.histogram] == [1] * 9 + [2]


def test_few_different_values_have_a_part_each() -> None:
    found = describe_distribution([0.0, 1.0, 0.0])
    assert found is not None
    assert found.histogram == (Bin(0.0, 0.0, 2), Bin(1.0, 1.0, 1))


def test_values_too_far_apart_for_their_difference_are_spread_too() -> None:
    values = [-1.7e308 + step * 1e307 + step * 1e307 for step in range(18)]
    found = describe_distribution(values)
    assert found is not None
    assert found.std is None
    assert sum(part.count for part in found.histogram) == 18
    assert all(math.isfinite(part.low) and math.isfinite(part.high) for part in found.histogram)


def test_a_deviation_beyond_every_number_is_none() -> None:
    found = describe_distribution([1.2e154, -1.2e154] * 3)
    assert found is not None
    assert found.std is None
