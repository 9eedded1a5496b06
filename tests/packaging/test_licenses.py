"""The licenses of what rlcore asks for: listed, and such that they fit."""

from importlib.metadata import PathDistribution
from pathlib import Path

import licenses
import pytest


def test_every_package_that_is_needed_has_a_license_that_fits() -> None:
    found = {one.name: licenses.license_of(one) for one in licenses.needed()}
    assert {"torch", "ray", "markdown-it-py"} <= found.keys(), "those that are needed in turn too"
    assert not {name: said for name, said in found.items() if licenses.misfits(said)}


@pytest.mark.parametrize(
    ("metadata", "license_name", "misfits"),
    [
        ("License-Expression: MIT AND (Apache-2.0 OR GPL-3.0-only)", None, ["GPL-3.0-only"]),
        ("License: Apache License 2.0", "Apache-2.0", []),
        (
            "License: 3-Clause BSD License\nClassifier: License :: OSI Approved :: BSD License",
            "BSD-3-Clause",
            [],
        ),
        ("Classifier: License :: OSI Approved :: MIT License", "MIT", []),
        ("License: AGPL-3.0", "AGPL-3.0", ["AGPL-3.0"]),
        ("License: Apache 2.0\nClassifier: License :: OSI Approved :: BSD License", "Apache-2.0 AND BSD", []),
        ("Summary: nothing is said", "unknown", ["unknown"]),
        ("License: All rights reserved.", "unknown", ["unknown"]),
    ],
)
def test_what_metadata_say(
    tmp_path: Path, metadata: str, license_name: str | None, misfits: list[str]
) -> None:
    (tmp_path / "METADATA").write_text(f"Metadata-Version: 2.4\nName: acme\nVersion: 1\n{metadata}\n")
    found = licenses.license_of(PathDistribution(tmp_path))
    assert license_name in (found, None)
    assert licenses.misfits(found) == misfits
