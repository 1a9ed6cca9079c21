"""Prints the coverage of the generated cases, or runs one of them and keeps its store."""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.contracts.generated.cases import N_LONG_RUN, N_SHORT_RUN, case
from tests.contracts.generated.checks import check_zarr, run_case
from tests.contracts.generated.coverage import Coverage
from tests.contracts.generated.running import run_cases
from tests.contracts.generated.stores import write_store


def main() -> int:
    """Do what the arguments say; 1 if a case failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.contracts.generated", description=__doc__
    )
    parser.add_argument("--case", type=int, metavar="N", help="run this case alone")
    parser.add_argument("--folder", type=Path, help="where --case leaves the store; default: new")
    parser.add_argument(
        "--run",
        type=int,
        nargs=2,
        metavar=("FIRST", "END"),
        help=f"run these cases; the tests run 0 to {N_SHORT_RUN}, with the slow ones {N_LONG_RUN}",
    )
    arguments = parser.parse_args()
    if arguments.case is not None:
        return _one(arguments.case, arguments.folder)
    coverage = Coverage("generated stores")
    if arguments.run is None:
        for number in range(N_SHORT_RUN):
            coverage.add(case(number))
    else:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(*arguments.run):
                for failure in run_cases([number], Path(folder), coverage):
                    _say(failure)
    _say(*coverage.lines())
    return int(coverage.n_failed > 0)


def _one(number: int, folder: Path | None) -> int:
    made = case(number)
    _say(str(made).replace(", ", "\n  ").replace(" (", "\n  ", 1).removesuffix(")"))
    written = write_store(made)
    kept = folder or Path(tempfile.mkdtemp(prefix=f"case-{number}-"))
    written.to_folder(kept / "store.zarr")
    _say(f"store: {kept / 'store.zarr'}")
    for array in written.arrays:
        layout = array.layout
        _say(
            f"array {array.name!r}: shape {layout.shape}, sample axis {layout.sample_axis}, stored "
            f"chunks of sizes {layout.edges}, keys of sizes {layout.key_edges}, missing "
            f"{sorted(array.missing)}"
        )
    check_zarr(written)
    with tempfile.TemporaryDirectory() as other:
        as_planned = run_case(made, Path(other), written)
    _say("passed" + ("" if as_planned else "; something was resident and not read again"))
    return 0


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    sys.exit(main())
