"""What may import what, and how long the command needs to wake up in modules."""

from __future__ import annotations

import subprocess
import sys

import pytest

BARRED = ("apache_beam", "pipeline")


def loaded_by(code: str) -> set[str]:
    program = f"{code}\nimport sys; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("package", ["mechanisms", "accountants", "evaluation"])
def test_pure_packages_never_import_beam_or_the_pipeline(package):
    code = f"""
import importlib, pkgutil, {package}
for module in pkgutil.walk_packages({package}.__path__, "{package}."):
    importlib.import_module(module.name)
"""
    assert not loaded_by(code) & set(BARRED)


def test_the_check_would_notice():
    assert "pipeline" in loaded_by("import pipeline.cli.main")


def test_help_imports_nothing_heavy():
    heavy = {"numpy", "polars", "pyarrow", "apache_beam", "scipy", "sklearn", "yaml"}
    code = "import pipeline.cli.main\ntry: pipeline.cli.main.main(['--help'])\nexcept SystemExit: pass"
    assert not loaded_by(code) & heavy
