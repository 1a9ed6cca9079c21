import mmap
from pathlib import Path

import pytest

from torchdata_insitu.pool.arena import reserve_arenas
from torchdata_insitu.pool.chunk_source import SlotShape

# From here on a slot is worth a huge page.
FAT = 2 << 20


def arena_of(slot_bytes, n_slots):
    shape = SlotShape("a", 1, (slot_bytes,), "|u1", 1, n_slots)
    return reserve_arenas([shape], limit_bytes=slot_bytes * n_slots)[0]


def resident_pages():
    return int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.parametrize("slot_bytes", [1000, 6000, 64_000])
def test_returned_memory_goes_back_to_the_system(slot_bytes):
    n_slots = (64 << 20) // slot_bytes
    arena = arena_of(slot_bytes, n_slots)
    slots = [arena.take_untouched() for _ in range(n_slots)]
    for slot in slots:
        arena.memory(slot)[:] = 1
    full = resident_pages()
    for slot in slots[::2] + slots[1::2]:
        arena.put_back(slot)
    assert sum(arena.return_idle_slot() for _ in slots) == n_slots * slot_bytes
    assert full - resident_pages() > 0.9 * (64 << 20) / mmap.PAGESIZE


def flags_of(arena):
    """What the system was told about the memory of an arena, such as "hg" for huge pages."""
    address = arena.region.rows.ctypes.data
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        first, dash, rest = line.partition("-")
        if dash and rest[:1].isalnum() and " " in rest and ":" not in first:
            start, stop = int(first, 16), int(rest.split()[0], 16)
            if start <= address < stop:
                return next(item for item in lines if item.startswith("VmFlags")).split()[1:]
    return None


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages"
)
def test_pages_are_huge_until_memory_is_given_back():
    arena = arena_of(FAT, 10)
    slot = arena.take_untouched()
    assert "hg" in flags_of(arena)
    arena.put_back(slot)
    arena.return_idle_slot()
    assert "nh" in flags_of(arena)
    assert "hg" not in flags_of(arena)


def test_small_slots_have_small_pages():
    arena = arena_of(FAT - 1, 10)
    arena.memory(arena.take_untouched())[:] = 1
    assert not {"hg", "nh"} & set(flags_of(arena) or ())


def test_a_system_without_huge_pages_is_none_the_worse(monkeypatch):
    monkeypatch.setattr("torchdata_insitu.pool.arena._HUGE", -1)
    arena = arena_of(FAT, 10)
    arena.memory(arena.take_untouched())[:] = 1
    monkeypatch.setattr("torchdata_insitu.pool.arena._HUGE", None)
    arena = arena_of(FAT, 10)
    arena.put_back(arena.take_untouched())
    assert arena.return_idle_slot() == FAT


@pytest.mark.parametrize("slot_bytes", [100, 1000, 6000])
def test_returning_a_slot_leaves_its_neighbours_alone(slot_bytes):
    arena = arena_of(slot_bytes, 200)
    slots = [arena.take_untouched() for _ in range(100)]
    for slot in slots:
        arena.memory(slot)[:] = slot % 251
    for slot in slots:
        if slot % 7:
            arena.put_back(slot)
            arena.return_idle_slot()
    for slot in slots[::7]:
        assert (arena.memory(slot) == slot % 251).all()


def test_a_returned_slot_is_taken_again_before_a_fresh_one():
    arena = arena_of(8192, 4)
    first = arena.take_untouched()
    arena.put_back(first)
    arena.return_idle_slot()
    assert arena.take_untouched() == first


def test_every_slot_can_be_taken_and_no_more():
    arena = arena_of(100, 3)
    slots = []
    while arena.has_untouched:
        slots.append(arena.take_untouched())
    assert slots == list(range(6))
    rows = {arena.row(slot) for slot in slots}
    assert rows == set(range(6))
