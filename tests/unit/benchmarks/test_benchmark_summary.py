import pytest
from summary import crossing, spread


def test_never_counts_as_worse_than_any_number():
    assert spread([3, 1, 2]) == {"median": 2, "min": 1, "max": 3}
    assert spread([None, 0.5, 0.7]) == {"median": 0.7, "min": 0.5, "max": None}
    assert spread([None, None, 0.7]) == {"median": None, "min": 0.7, "max": None}
    with pytest.raises(ValueError, match="no values"):
        spread([])


def test_crossing_is_linear_between_points():
    assert crossing([0, 10, 20], [0.1, 0.3, 0.5], 0.4) == (pytest.approx(15), 1, pytest.approx(0.5))
    assert crossing([0, 10, 20], [0.1, 0.3, 0.2], 0.3) == (10, 0, 1)
    assert crossing([0, 10], [0.5, 0.6], 0.4) == (0, 0, 0)
    assert crossing([0, 10], [0.1, 0.2], 0.3) is None
