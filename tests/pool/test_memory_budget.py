import pytest

from torchdata_insitu.pool.memory_budget import (
    PoolBudget,
    _free_in_groups,
    free_memory_bytes,
    text_of_bytes,
)


def group(mount, name, limit, used, inactive_file=0):
    folder = mount / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\ninactive_file {inactive_file}\n")


def membership(tmp_path, text):
    path = tmp_path / "membership"
    path.write_text(text)
    return path


def test_every_group_on_the_way_to_the_root_limits(tmp_path):
    mount = tmp_path / "mount"
    group(mount, "job/step", "max", 10)
    group(mount, "job", 1000, 400)
    path = membership(tmp_path, "0::/job/step\n")
    assert list(_free_in_groups(path, mount)) == [600]


def test_files_kept_in_memory_without_use_are_free(tmp_path):
    mount = tmp_path / "mount"
    group(mount, "", 1000, 900, inactive_file=300)
    assert list(_free_in_groups(membership(tmp_path, "0::/\n"), mount)) == [400]


def test_no_group_is_no_limit(tmp_path):
    assert list(_free_in_groups(tmp_path / "absent", tmp_path / "mount")) == []


def test_a_share_is_of_what_is_free():
    budget = PoolBudget("25%")
    assert budget.n_bytes == budget.limit_bytes == budget.grown_for(2 * budget.limit_bytes)
    assert 0 < budget.n_bytes < free_memory_bytes() / 2


def test_auto_grows_to_twice_the_floors_and_never_shrinks():
    budget = PoolBudget("auto")
    assert (budget.n_bytes, budget.grown_for(100)) == (0, 200)
    budget.n_bytes = 200
    assert budget.grown_for(50) == 200
    assert budget.grown_for(budget.limit_bytes) == budget.limit_bytes


def test_a_budget_says_where_it_comes_from():
    assert PoolBudget(2000).text(2000) == "2 kB"
    assert PoolBudget(2000).text(2000, is_exact=True) == "2000 B"
    assert PoolBudget("25%").text(7) == "7 B (25% of the memory free when the pool was made)"
    budget = PoolBudget("auto")
    assert budget.text(7) == "7 B ('auto': two blocks of each pass)"
    assert "('auto': half of the memory free when" in budget.text(budget.limit_bytes)


@pytest.mark.parametrize(
    "n_bytes,text", [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (2_085_120, "2.09 MB")]
)
def test_bytes_are_told_as_people_read_them(n_bytes, text):
    assert text_of_bytes(n_bytes) == text
