"""The verdict's rule. Student's t for three seeds at 95 % is 4.303, so values 0.80, 0.81, 0.82
(standard deviation 0.01) have the interval 0.81 ± 4.303 * 0.01 / sqrt(3) = 0.81 ± 0.0248.
"""

from __future__ import annotations

import math

import pytest

from evenfed.papers.recipe import Metric, Published
from evenfed.papers.verdict import compare, judge

OURS = [0.80, 0.81, 0.82]
HIGHER = Metric("accuracy", "accuracy")
LOWER = Metric("error", "error", higher=False)


@pytest.mark.parametrize(
    ("printed", "word"),
    [(0.835, "agrees"), (0.836, "worse"), (0.785, "agrees"), (0.784, "better")],
)
def test_a_printed_mean_agrees_inside_the_interval_over_seeds(printed: float, word: str) -> None:
    # the ends are 0.7852 and 0.8348, widened by half of a thousandth
    assert judge(OURS, Published(printed), HIGHER).word == word


def test_the_printed_standard_deviation_widens_the_interval() -> None:
    assert judge(OURS, Published(0.85), HIGHER).word == "worse"
    assert judge(OURS, Published(0.85, sd=0.015), HIGHER).word == "agrees"


@pytest.mark.parametrize(("printed", "word"), [(0.845, "agrees"), (0.846, "worse")])
def test_a_printed_mean_of_some_runs_is_uncertain_too(printed: float, word: str) -> None:
    # a difference of means of three and three: sqrt(2) * 0.0248 = 0.0351, and half a thousandth
    assert judge(OURS, Published(printed, runs=3), HIGHER).word == word
    assert judge(OURS, Published(printed), HIGHER).word == "worse"


def test_agreement_inside_a_wide_interval_of_a_difference_is_not_called_agreement() -> None:
    # one run in print: sqrt(4) * 0.0248 = 0.0497 is within 0.05; a half more of spread is not
    assert judge(OURS, Published(0.85, runs=1), HIGHER).word == "agrees"
    more = [0.795, 0.81, 0.825]
    assert judge(more, Published(0.85, runs=1), HIGHER).word == "not comparable"


def test_where_less_is_better_a_lower_number_is_better() -> None:
    assert judge(OURS, Published(0.9), LOWER).word == "better"
    assert judge(OURS, Published(0.7), LOWER).word == "worse"


def test_the_difference_is_ours_less_theirs() -> None:
    assert judge(OURS, Published(0.9), HIGHER).difference == pytest.approx(-0.09)


def test_what_is_marked_is_not_comparable_whatever_it_is() -> None:
    verdict = judge(OURS, Published(0.81), HIGHER, incomparable="another metric")
    assert (verdict.word, verdict.reason) == ("not comparable", "another metric")


def test_two_seeds_are_too_few_for_a_verdict() -> None:
    verdict = judge([0.5, 0.6], Published(0.9), HIGHER)
    assert verdict.word == "not comparable"
    assert "2 seeds" in verdict.reason


def test_an_undefined_seed_leaves_no_verdict() -> None:
    verdict = judge([0.8, math.nan, 0.8], Published(0.8), HIGHER)
    assert verdict.word == "not comparable"
    assert "1 of 3" in verdict.reason


def test_agreement_by_a_wide_interval_alone_is_not_called_agreement() -> None:
    wide = [0.6, 0.8, 1.0]
    assert judge(wide, Published(0.7), HIGHER).word == "not comparable"
    # far outside it is a verdict all the same
    assert judge(wide, Published(0.1), HIGHER).word == "better"


def test_rounding_follows_the_digits_that_are_printed() -> None:
    assert Published(0.83).rounding == pytest.approx(0.0005)
    assert Published(0.12345).rounding == pytest.approx(0.000005)
    assert Published(86.4).rounding == pytest.approx(0.05)


def test_an_ordering_is_judged_by_differences_within_seeds() -> None:
    # seeds differ by far more than the methods do
    low, high = [0.10, 0.50, 0.90], [0.11, 0.512, 0.909]
    assert compare(high, low, HIGHER) == "holds"
    assert compare(low, high, HIGHER) == "fails"
    assert compare(low, high, LOWER) == "holds"
    assert compare([0.1, 0.6, 0.8], [0.2, 0.5, 0.9], HIGHER) == "not told apart"


def test_an_ordering_needs_three_seeds_and_numbers() -> None:
    assert compare([0.9, 0.9], [0.1, 0.1], HIGHER) == "not told apart"
    assert compare([0.9, 0.9, math.nan], [0.1, 0.1, 0.1], HIGHER) == "not told apart"
