"""The site builds without a warning: every page is in the menu, every link and anchor is there."""

import os
import sys
from pathlib import Path

import pytest

from rlcore_testing.programs import ran

ROOT = Path(__file__).parents[2]


@pytest.mark.full  # test_docs.py follows the links of every page
def test_the_site_builds(tmp_path: Path) -> None:
    build = ["mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = ran(sys.executable, "-m", *build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    assert done.returncode == 0, done.stderr
    assert "Kind <code>advantage</code>" in (tmp_path / "site/reference/kinds.html").read_text()
    assert (tmp_path / "site/search/search_index.js").stat().st_size > 100_000
    home = (tmp_path / "site/index.html").read_text()
    assert "Two commands" in home
    assert 'src="https://' not in home, "it opens without a network"
    math = (tmp_path / "site/project/examples/math/index.html").read_text()
    assert 'href="../../../rewards.html#math"' in math
    assert (tmp_path / "site/project/examples/math/curve.png").is_file()
    assert "async" in (tmp_path / "site/project/examples/debate/debate.py.html").read_text()
    hooks = (tmp_path / "site/hooks.html").read_text()
    assert 'href="project/core/src/rlcore/api/part_config.py.html"' in hooks
