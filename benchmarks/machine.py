"""What a measurement was made on and with."""

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torchdata_insitu
from torchdata_insitu.fetch.cpu_share import usable_cores

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGES = ("torch", "torchdata", "zarr", "numcodecs", "obstore", "numpy", "insitubatch")


def about_this_machine() -> dict[str, Any]:
    """Hardware, system, versions and commit, as JSON takes it."""
    return {
        "cores": usable_cores(),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "torchdata_insitu": torchdata_insitu.__version__,
        **{name: _version(name) for name in _PACKAGES},
        "commit": _commit(),
    }


def caption_of(about: dict[str, Any]) -> str:
    """The same in one line."""
    return (
        f"{about['cores']} cores of {about['processor']}, {about['memory_gb']:.0f} GB; "
        f"{about['kernel']}; Python {about['python']}, torch {about['torch']}, zarr "
        f"{about['zarr']}, numcodecs {about['numcodecs']}, obstore {about['obstore']}, "
        f"insitubatch {about['insitubatch']}; torchdata_insitu {about['torchdata_insitu']} at "
        f"{about['commit']}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    git = shutil.which("git")
    if git is None:
        return "unknown"
    commit = _said([git, "rev-parse", "--short=12", "HEAD"])
    changed = _said(
        [git, "status", "--porcelain", "--untracked-files=no", "--", "torchdata_insitu"]
    )
    return f"{commit or 'unknown'}{' with changes' if changed else ''}"


def _said(command: list[str]) -> str:
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
