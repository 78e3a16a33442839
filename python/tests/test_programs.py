"""The programs of the page that need NumPy and SciPy alone."""

import programs
import pytest

OWN = [text for text in programs.programs() if programs.needs(text) <= {"scipy"}]


def test_there_are_three():
    assert len(OWN) == 3


@pytest.mark.parametrize("text", OWN, ids=["numpy", "scipy", "resident"])
def test_it_runs(text):
    programs.run(text)
