"""Make a virtual environment that can run mtmc. Standard library only: runs before anything is installed.

A GPU machine often has a torch that fits its driver, and no network. So a torch that this Python already
has, and that sees a GPU, is used as it is; everything else is installed at the versions in constraints.txt.
Without a network, carry the wheels and set PIP_NO_INDEX=1 and PIP_FIND_LINKS to their folder.
"""

from __future__ import annotations

import argparse
import re
import site
import subprocess
import sys
import tempfile
import venv
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = "shared-site-packages.pth"
HAS_GPU_TORCH = "import torch, sys; sys.exit(not torch.cuda.is_available())"


def own_torch_sees_a_gpu() -> bool:
    """Asked in a child process, so that this one stays small and a broken torch can't end it."""
    return subprocess.run([sys.executable, "-c", HAS_GPU_TORCH], capture_output=True).returncode == 0


def pins(shared: bool) -> str:
    """The lines of constraints.txt, without the packages that the environment takes from this Python."""
    present = {plain(d.metadata["Name"]) for d in metadata.distributions()} if shared else set()
    lines = (ROOT / "constraints.txt").read_text().splitlines(keepends=True)
    return "".join(line for line in lines if plain(line.split("==")[0]) not in present)


def plain(name: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def create(folder: Path) -> None:
    """Make the environment; with this Python's own packages visible where its torch sees a GPU."""
    if find_spec("ensurepip") is None:
        sys.exit("setup: this Python can't make virtual environments; on Debian: apt install python3-venv")
    shared = own_torch_sees_a_gpu()
    print(f"setup: making {folder}{', with the torch that is here' if shared else ''}", flush=True)
    venv.create(folder, with_pip=True)
    if shared:
        # Not system_site_packages: that shows the base Python's packages, and torch may live in another venv.
        (site_packages(folder) / SHARED).write_text("\n".join(site.getsitepackages()) + "\n")


def site_packages(folder: Path) -> Path:
    return folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"


def install(folder: Path, extras: str) -> int:
    """Create ``folder`` if needed and install mtmc there, editable, with ``extras``. Returns pip's code."""
    python = folder / "bin" / "python"
    if not python.exists():
        create(folder)
    target = f"{ROOT}[{extras}]" if extras else str(ROOT)
    print(f"setup: installing mtmc{f'[{extras}]' if extras else ''} (a few minutes the first time)", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        constraints = Path(scratch) / "constraints.txt"
        constraints.write_text(pins(shared=(site_packages(folder) / SHARED).exists()))
        pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        return subprocess.run([*pip, "-c", str(constraints), "-e", target]).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path, help="the virtual environment, made if needed")
    parser.add_argument("--extras", default="", help="comma-separated extras of pyproject.toml, such as dev,report")
    given = parser.parse_args()
    if not (3, 11) <= sys.version_info[:2] < (3, 14):
        print(
            f"setup: mtmc needs Python 3.11 to 3.13, this is {sys.version.split()[0]}; set PYTHON=",
            file=sys.stderr,
        )
        return 3
    return install(given.folder, given.extras)


if __name__ == "__main__":
    sys.exit(main())
