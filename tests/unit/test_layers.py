"""The rules on imports: layers point down, the start is quick, and optional packages stay optional."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OPTIONAL = ("openai", "httpx", "transformers", "peft", "accelerate", "ray", "plotly", "pyarrow", "matplotlib")

IMPORT_ALL = f"""
import importlib, pkgutil, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        # As if only what pyproject.toml requires were installed.
        if name.partition(".")[0] in {OPTIONAL!r}:
            raise ModuleNotFoundError(f"optional package {{name}}", name=name)
sys.meta_path.insert(0, Refuse())
import mtmc
for module in pkgutil.walk_packages(mtmc.__path__, "mtmc."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""

HEAVY = ("torch", "triton", "numpy", "libcst", "jinja2", "pyarrow", "plotly", "transformers")


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)


def test_imports_point_down() -> None:
    lint = Path(sysconfig.get_path("scripts")) / "lint-imports"
    done = subprocess.run([lint, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_folder_is_a_package_that_the_contracts_see() -> None:
    folders = {path.parent for path in (ROOT / "mtmc").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_every_module_imports_without_the_optional_packages() -> None:
    done = python(IMPORT_ALL)
    assert done.returncode == 0, done.stderr


def test_the_command_line_starts_without_heavy_packages() -> None:
    done = python(f"import sys, mtmc.cli.app; print([n for n in {HEAVY!r} if n in sys.modules])")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_no_file_is_over_the_line_budget() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts/line_budget.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
