"""The programs of the page that need torch or JAX."""

import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import programs  # noqa: E402

OTHERS = [text for text in programs.programs() if programs.needs(text) & {"torch", "jax"}]


def test_there_are_two():
    assert len(OTHERS) == 2


@pytest.mark.parametrize("text", OTHERS, ids=["torch", "jax"])
def test_it_runs(text):
    programs.run(text)
