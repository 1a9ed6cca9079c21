"""The checks of a case find each kind of mistake; the stores are as various as they say."""

import dataclasses

import numpy as np
import pytest
import zarr

import torchdata_insitu as tdi
from tests.contracts.generated import __main__ as command
from tests.contracts.generated.cases import Case, case
from tests.contracts.generated.checks import CaseError, check_zarr, run_case
from tests.contracts.generated.coverage import Coverage
from tests.contracts.generated.factors import FACTORS, SPACE
from tests.contracts.generated.running import run_cases
from tests.contracts.generated.stores import write_store
from tests.contracts.generated.values import payload_json

PLAIN = {
    "format": 3,
    "dtype": "f4",
    "byte_order": "little",
    "order": "C",
    "compressor": "none",
    "filters": "none",
    "keys": "/",
    "shards": "none",
    "shard_index": "no shards",
    "around_shards": "nothing",
    "grid": "ragged",
    "ndim": 2,
    "sample_axis": "first",
    "fill": "zero",
    "missing": "none",
    "names": "plain",
    "store": "counting",
    "view": "plain",
    "batch_size": 3,
    "block_chunks": 2,
    "shuffle": True,
    "tail": "exact",
    "ranks": 1,
    "lanes": "by rank",
    "budget": "plenty",
}


def plain(**levels):
    made = Case(0, {**PLAIN, **levels})
    assert made.levels.keys() == FACTORS.keys()
    assert SPACE.allows(made.levels)
    return made


def changed(written, key, change):
    """The store with other bytes under one key; None takes them away."""
    keys = dict(written.keys)
    data = change(keys.pop(key))
    return dataclasses.replace(written, keys=keys if data is None else {**keys, key: data})


def key_of(written, number=0):
    return sorted(written.arrays[0].keys.values())[number]


def test_a_plain_case_passes(tmp_path):
    assert run_case(plain(), tmp_path) is True


def test_one_flipped_bit_is_found(tmp_path):
    written = write_store(plain())
    damaged = changed(written, key_of(written), lambda data: bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(CaseError, match=r"Zarr's 't2m' differs at 1 of"):
        check_zarr(damaged)
    with pytest.raises(CaseError, match=r"'x' of batch \d+ .* differs at 1 of"):
        run_case(plain(), tmp_path, damaged)


@pytest.mark.parametrize(
    "wrong, right", [("80000000", "00000000"), ("7fc00000", "7fc0a55a"), ("7fc0002a", "7f80002a")]
)
def test_signs_of_zero_and_payloads_of_nan_count(wrong, right, tmp_path):
    written = write_store(plain())
    first = written.arrays[0]
    expected = first.expected.copy()
    expected.view("u4")[0, 0] = int(right, 16)
    arrays = [dataclasses.replace(first, expected=expected)]
    data = int(wrong, 16).to_bytes(4, "little")
    other = changed(written, key_of(written), lambda stored: data + stored[4:])
    with pytest.raises(CaseError, match="differs at 1 of"):
        run_case(plain(), tmp_path, dataclasses.replace(other, arrays=arrays))


def test_a_chunk_that_is_missing_unasked_is_found(tmp_path):
    written = write_store(plain())
    with pytest.raises(CaseError, match="differs at"):
        run_case(plain(), tmp_path, changed(written, key_of(written), lambda _: None))


def test_a_missing_chunk_that_is_there_is_found(tmp_path):
    """Also where it holds nothing but the fill value."""
    made = plain(missing="some")
    written = write_store(made)
    first = written.arrays[0]
    coordinates = min(first.missing)
    values = np.zeros(first.layout.key_chunks, "f4").tobytes()
    stored = {**written.keys, first.keys[coordinates]: values}
    with pytest.raises(CaseError, match="reads of 't2m' were of missing chunks"):
        run_case(made, tmp_path, dataclasses.replace(written, keys=stored))


def one_more(reads):
    """`Plan.reads`, with one read more of each array."""

    def wrong(self, *arguments, **options):
        return {name: n + 1 for name, n in reads(self, *arguments, **options).items()}

    return wrong


def test_reads_that_are_not_those_planned_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(tdi.Plan, "reads", one_more(tdi.Plan.reads))
    with pytest.raises(CaseError, match="planned reads of 't2m': "):
        run_case(plain(), tmp_path)


def test_samples_that_do_not_come_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(tdi.InSituLoader, "__iter__", lambda _: iter(()))
    with pytest.raises(CaseError, match="batches, by len"):
        run_case(plain(), tmp_path)


@pytest.mark.parametrize("dtype", ["bool", "i1", "f2", "f4", "f8", "c8", "c16", "M8[ns]"])
def test_values_have_what_is_easily_lost(dtype):
    found = set()
    for number in range(20):
        made = dataclasses.replace(plain(dtype=dtype), number=number)
        values = write_store(made).arrays[0].expected
        if values.dtype.kind == "b":
            found |= set(values.ravel().tolist())
            continue
        parts = values.view(values.real.dtype).ravel()
        found |= set(parts.view(f"u{parts.itemsize}").tolist())
    bits = 8 * parts.itemsize if dtype != "bool" else 1
    sign = 1 << (bits - 1)
    if dtype == "bool":
        assert found == {True, False}
    elif np.dtype(dtype).kind in "fc":
        infinity = int(np.array(np.inf, parts.dtype).view(f"u{parts.itemsize}"))
        quiet = int(np.array(np.nan, parts.dtype).view(f"u{parts.itemsize}"))
        signalling, denormals = infinity | 0x2A, {1, 1 | sign}
        assert {0, sign, infinity, infinity | sign, quiet, quiet | 0x55, signalling} <= found
        assert denormals <= found
    else:
        assert {0, sign, sign - 1} <= found
    assert len(found) > 5 or dtype == "bool"


def test_stores_are_what_the_levels_say():
    two = write_store(plain(format=2, order="F", keys=".", byte_order="big", names="NFD"))
    (path,) = {array.name for array in two.arrays}
    array = zarr.open_array(two.in_memory(), path=path, mode="r")
    assert (array.metadata.zarr_format, array.metadata.order) == (2, "F")
    assert array.dtype.str == ">f4"
    assert f"{path}/0.0" in two.keys
    assert len(path) > len("température/été")
    made = plain(shards="whole", shard_index="start unchecked", missing="some", compressor="lz4")
    sharded = write_store(made)
    array = zarr.open_array(sharded.in_memory(), path="t2m", mode="r")
    (codec,) = array.metadata.codecs
    assert codec.index_location == "start"
    assert len(codec.index_codecs) == 1
    assert len(codec.codecs) == 2
    assert array.chunks == sharded.arrays[0].layout.inner
    assert list(sharded.keys) == ["zarr.json", "t2m/zarr.json", "t2m/c/0/0"]
    # Two index numbers of eight bytes each; all ones where an inner chunk is missing.
    n_chunks = len(sharded.arrays[0].keys)
    index = np.frombuffer(sharded.keys["t2m/c/0/0"][: 16 * n_chunks], "<u8").reshape(-1, 2)
    assert (index == 2**64 - 1).all(axis=1).sum() == len(sharded.arrays[0].missing) > 0


def test_a_fill_value_in_hex_is_what_format_3_writes():
    assert payload_json(np.dtype("f4")) == "0x7fc0a55a"
    assert payload_json(np.dtype("c16")) == ["0x7ff8a5a5000055aa"] * 2
    written = write_store(plain(fill="payload", missing="some"))
    assert b'"fill_value": "0x7fc0a55a"' in written.keys["t2m/zarr.json"]
    first = written.arrays[0]
    filled = first.expected[first.layout.region(min(first.missing))]
    assert set(filled.view("u4").ravel().tolist()) == {0x7FC0A55A}


def test_a_failure_names_the_case_and_the_command(tmp_path, monkeypatch):
    def fail(made, _):
        if made.number == 1:
            raise CaseError("it is not as it should be")
        return made.number == 0

    monkeypatch.setattr("tests.contracts.generated.running.run_case", fail)
    coverage = Coverage("some")
    (said,) = run_cases(range(3), tmp_path, coverage)
    assert said.startswith("case 1 (format=")
    assert "it is not as it should be" in said
    assert said.endswith("python -m tests.contracts.generated --case 1")
    assert coverage.lines()[0].startswith("some: 3 cases, 1 failed;")
    assert coverage.lines()[0].endswith("in 1")


# Its lanes and ranks are any numbers, and what that costs is told.
@pytest.mark.filterwarnings("ignore:.*lanes on .* ranks")
def test_the_command_prints_the_coverage_and_runs_one_case(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["generated", "--case", "3", "--folder", str(tmp_path)])
    assert command.main() == 0
    said = capsys.readouterr().out
    assert said.startswith("case 3\n  format=")
    assert "passed" in said
    made = case(3)
    keys = {str(p.relative_to(tmp_path / "store.zarr")) for p in tmp_path.rglob("*") if p.is_file()}
    assert keys == set(write_store(made).keys)
    monkeypatch.setattr("sys.argv", ["generated"])
    assert command.main() == 0
    assert "300 cases, 0 failed" in capsys.readouterr().out
