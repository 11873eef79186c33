"""A file that runs in a process of its own leaves its neighbours' fixtures in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SUPPORT = Path(__file__).parents[1] / "support"
FILES = {
    "conftest.py": "import own_process\npytest_configure = own_process.register\n",
    "pytest.ini": "[pytest]\nmarkers = own_process\n",
    "first/test_shared.py": "def test_one():\n    pass\n",
    "first/test_own.py": (
        "import os, pytest\n"
        "pytestmark = pytest.mark.own_process\n"
        "def test_two():\n    assert os.getppid() == {parent}\n"
    ),
    "second/test_other.py": "def test_three():\n    pass\n",
}


def test_the_file_before_it_is_left_before_the_file_after_it(tmp_path: Path) -> None:
    """The first two share a folder, which the third is not in."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text.replace("{parent}", "int(os.environ['PARENT'])"))
    files = [name for name in FILES if "test_" in name]
    script = (
        f"import os, sys, pytest; sys.path.insert(0, {str(SUPPORT)!r}); "
        "os.environ.update(PARENT=str(os.getpid()), PYTHONPATH=sys.path[0]); "
        f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', '-p', 'no:xdist', *{files!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
