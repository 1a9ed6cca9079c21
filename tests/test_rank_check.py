"""All ranks go on from the same place, or all raise the same error."""

import ast
import pathlib

import pytest

import torchdata_insitu as tdi
from tests.engines.rank_check_cases import CASES, N_RANKS
from tests.forked_ranks import run_ranks
from tests.small_loaders import make_loader
from torchdata_insitu.errors import PlanError, StateError

PACKAGE = pathlib.Path(tdi.__file__).parent
ADVICE = ". Build the loader alike on every rank, and load the same state into each"
SAID = {
    "one_in_another_epoch": (
        f"the ranks disagree: epoch is 0 on ranks 0, 2-3 and 3 on rank 1{ADVICE}"
    ),
    "one_at_another_position": (
        "the ranks disagree: position is 4 on ranks 0-2 and 8 on rank 3; "
        f"step is 1 on ranks 0-2 and 2 on rank 3{ADVICE}"
    ),
    "two_of_another_plan": (
        f"the ranks disagree: plan.seed is 0 on ranks 0-1 and 7 on ranks 2-3{ADVICE}"
    ),
    "one_with_another_batch_size": (
        "the ranks disagree: len is 3 on rank 0 and 2 on ranks 1-3; "
        f"batch_size is 2 on rank 0 and 4 on ranks 1-3{ADVICE}"
    ),
    "one_failed": "rank 2 failed: ReadError: key 't2m/c/0' is not there",
    "one_failed_and_says_so_in_words": "rank 0 failed: no credentials",
    "one_has_no_loader": "rank 3 failed: there is no loader, and no error was given",
    "one_cannot_say_where_it_stands": "rank 1 failed: LookupError: lost",
    "all_failed_alike": "ranks 0-3 failed: OSError: host not found",
    "all_of_rank_0": (
        "no process has data-parallel ranks 1-3 of world_size 4, whose draws are left out: "
        "rank is 0 on ranks 0-3. Give each process its own rank among all nodes, or none, so that "
        "it is looked up"
    ),
    "ranks_counted_on_each_node_anew": (
        "no process has data-parallel ranks 2-3 of world_size 4, whose draws are left out: "
        "rank is 0 on ranks 0, 2 and 1 on ranks 1, 3. Give each process its own rank among all "
        "nodes, or none, so that it is looked up"
    ),
}
CAUSES = {
    ("one_failed", 2): """ReadError("key 't2m/c/0' is not there")""",
    ("one_cannot_say_where_it_stands", 1): "LookupError('lost')",
}
# What asks `torch.distributed` something without waiting for another process.
LOCAL = {
    *("is_available", "is_initialized", "get_rank", "get_world_size", "get_process_group_ranks"),
    *("ProcessGroup", "DeviceMesh"),
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What each rank says to each case."""
    folder = tmp_path_factory.mktemp("ranks")
    return run_ranks("tests.engines.rank_check_cases:main", N_RANKS, folder)


@pytest.mark.parametrize("case", CASES)
def test_ranks_say_the_same_after_one_collective(case, answers):
    texts = [answer[case][0] for answer in answers]
    assert texts == [texts[0]] * N_RANKS
    assert [answer[case][2] for answer in answers] == [1] * N_RANKS


@pytest.mark.parametrize("case", [case for case in CASES if case.startswith("agrees")])
def test_ranks_at_the_same_place_go_on(case, answers):
    assert answers[0][case][0] is None


@pytest.mark.parametrize("case", SAID)
def test_the_error_names_ranks_field_and_values(case, answers):
    assert answers[0][case][0] == SAID[case]


def test_the_place_of_each_source_of_a_mix_counts(answers):
    text = answers[0]["one_of_a_mix_at_another_position"][0]
    assert "the ranks disagree: step is 0 on ranks 0-1, 3 and 1 on rank 2; " in text
    assert ".position is 0 on ranks 0-1, 3 and 4 on rank 2" in text


def test_a_plan_that_cannot_be_is_told_by_every_rank(answers):
    text, cause, _ = answers[0]["all_with_more_ranks_than_samples"]
    assert text.startswith("ranks 0-3 failed: PlanError: ")
    assert cause.startswith("PlanError(")


def test_the_rank_that_failed_keeps_its_error_as_the_cause(answers):
    for (case, failed), cause in CAUSES.items():
        for rank, answer in enumerate(answers):
            assert answer[case][1] == (cause if rank == failed else "None")


def test_alone_nothing_is_asked():
    loader = make_loader()
    loader.state_dict = None
    tdi.check_ranks(loader)
    loader.close()


def test_alone_an_error_is_not_lost():
    found = PlanError("no draws")
    with pytest.raises(StateError, match=r"^rank 0 failed: PlanError: no draws$") as caught:
        tdi.check_ranks(None, error=found)
    assert caught.value.__cause__ is found


def test_the_library_waits_for_other_processes_nowhere_else():
    found = [
        (str(path.relative_to(PACKAGE)), name)
        for path in sorted(PACKAGE.rglob("*.py"))
        for name in names_of_distributed(path)
        if name not in LOCAL
    ]
    assert found == [("rank_check.py", "all_gather_object")]


def names_of_distributed(path):
    """What a file takes from `torch.distributed`, or from a strategy of Lightning."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("torch.distributed"):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "torch":
            yield from (alias.name for alias in node.names if alias.name == "distributed")
        elif isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value).rpartition(".")[2]
            if owner in {"distributed", "dist", "strategy"}:
                yield node.attr
