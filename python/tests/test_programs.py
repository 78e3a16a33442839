"""The programs of the page that need NumPy and SciPy alone."""

import programs
import pytest

OWN = [text for text in programs.programs() if programs.needs(text) <= {"scipy"}]


def test_there_are_four():
    assert len(OWN) == 4


@pytest.mark.parametrize("text", OWN, ids=["numpy", "scipy", "resident", "packed"])
def test_it_runs(text):
    programs.run(text)
