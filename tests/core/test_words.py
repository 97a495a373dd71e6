"""Numbers as people read them."""

import pytest

from mdio.core.words import duration


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (61.24, "61.2 s"),
        (1.0, "1 s"),
        (0.9996, "1 s"),
        (0.9994, "999 ms"),
        (0.0099995, "10 ms"),
        (0.00099996, "1 ms"),
        (4.14e-6, "4.14 µs"),
        (-0.9996, "-1 s"),
        (1234.5, "1,234 s"),
        (0.0, "0 s"),
        (None, "–"),
    ],
)
def test_a_time_has_three_digits_and_no_exponent(seconds, said):
    assert duration(seconds) == said
