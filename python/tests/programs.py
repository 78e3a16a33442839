"""The programs of docs/python.md, each run by itself."""

import pathlib
import re
import subprocess
import sys

PAGE = pathlib.Path(__file__).parents[2] / "docs/python.md"


def programs():
    """The texts by the first module beside gemv's that each imports."""
    texts = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(texts) == 6
    return texts


def needs(text):
    return {name for name in ("scipy", "torch", "jax") if re.search(rf"^(import|from) {name}\b", text, re.MULTILINE)}


def run(text):
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
