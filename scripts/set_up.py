"""Make the environment that the Makefile runs in, or find it ready.

Usage: ``python3 scripts/set_up.py``. Silent and quick when there is nothing to do.

The environment is ``.venv`` in this clone, with the package installed editable. Where ``TDI_VENV``
names a folder, that is used instead: it gets the dependencies only, because several clones may
share it and an editable install would point all of them at one; the Makefile puts the clone on
``PYTHONPATH``.

A stamp in the environment holds a hash of what was installed: while it matches, nothing is done.
A mark stands while pip works, so that an environment left half made by a killed run is made again
from nothing. A lock keeps two runs from making it at once.
"""

import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
EXTRAS = ("bench", "dev", "plot", "test")
OLDEST = (3, 12)


def main():
    """Refuse a Python that is too old, then make the environment under a lock."""
    # No annotations and nothing newer than Python 3.6 in the syntax of this file: an old
    # interpreter has to be able to read it far enough to say what is wrong.
    if sys.version_info < OLDEST:
        found = ".".join(str(part) for part in sys.version_info[:3])
        sys.exit(
            "torchdata_insitu needs Python >= 3.12, but {} is Python {}: install a newer one and "
            "name it, for example `make PYTHON=python3.12 test`".format(sys.executable, found)
        )
    shared = os.environ.get("TDI_VENV")
    venv = pathlib.Path(shared or ROOT / ".venv").resolve()
    venv.parent.mkdir(parents=True, exist_ok=True)
    with open(str(venv) + ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_ready(venv, shared=bool(shared))


def make_ready(venv, shared):
    """Bring ``venv`` to what pyproject.toml asks for, doing nothing when it is there already."""
    project = read_project()
    wanted = stamp_of(project, shared)
    stamp = venv / "torchdata-insitu.stamp"
    mark = venv / "torchdata-insitu.installing"
    if stamp.is_file() and stamp.read_text() == wanted and not mark.exists():
        return
    if mark.exists() or not is_usable(venv):
        if venv.exists() and not (mark.exists() or (venv / "pyvenv.cfg").is_file()):
            sys.exit("{} exists and is no Python environment: name another TDI_VENV".format(venv))
        shutil.rmtree(str(venv), ignore_errors=True)
        say("making " + str(venv))
        venv.mkdir()
        mark.touch()
        run(sys.executable, "-m", "venv", str(venv))
    mark.touch()
    say("installing (PyTorch is large: a few minutes the first time, nothing the next)")
    run(
        str(venv / "bin" / "python"),
        *("-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *(dependencies(project) if shared else ["-e", "{}[{}]".format(ROOT, ",".join(EXTRAS))]),
    )
    stamp.write_text(wanted)
    mark.unlink()


def read_project():
    """Read the part of pyproject.toml that decides what is installed."""
    import tomllib  # noqa: PLC0415, Python 3.11 has it first

    whole = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {key: whole[key] for key in ("project", "build-system")}


def dependencies(project):
    """List the requirements of the package and of the extras the Makefile needs."""
    table = project["project"]
    return [
        *table["dependencies"],
        *(line for extra in EXTRAS for line in table["optional-dependencies"][extra]),
    ]


def stamp_of(project, shared):
    """Hash what is installed, for which Python, and for an editable install from where."""
    where = "" if shared else str(ROOT)
    parts = (repr(project), repr(EXTRAS), sys.version, sys.executable, where)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def is_usable(venv):
    """Tell whether ``venv`` has a Python of this version that can run pip."""
    python = venv / "bin" / "python"
    if not python.is_file():
        return False
    code = "import sys, pip; print('%d.%d' % sys.version_info[:2])"
    found = subprocess.run([str(python), "-c", code], stdout=subprocess.PIPE, check=False)
    return found.stdout.decode().strip() == "{}.{}".format(*sys.version_info[:2])


def run(*command):
    """Run a command of the set-up; where it fails, end with its exit status."""
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode:
        say("this failed: " + " ".join(command))
        sys.exit(done.returncode)


def say(text):
    """Tell the person what takes so long."""
    print("set-up: " + text, file=sys.stderr)


if __name__ == "__main__":
    main()
