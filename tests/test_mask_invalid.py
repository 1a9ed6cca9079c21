"""Copies that fill up a last batch leave it again."""

import torch

import torchdata_insitu as tdi
from tests.small_loaders import flat, make_loader


def test_the_batches_of_all_ranks_have_every_sample_once():
    found, n_copies = [], 0
    for rank in range(3):
        with make_loader(shuffle=False, batch_size=7, rank=rank, world_size=3) as loader:
            for batch in loader:
                n_copies += len(batch["x"])
                masked = tdi.mask_invalid(batch)
                assert set(masked) == set(batch) - {"valid"}
                assert len(masked["x"]) == len(masked["sample_index"])
                n_copies -= len(masked["x"])
                found += (masked["x"][:, 0, 0] / 6).tolist()
    assert sorted(found) == list(range(22))
    assert n_copies > 0


def test_a_batch_without_copies_is_handed_on():
    x = torch.arange(3)
    for valid in ({}, {"valid": torch.ones(3, dtype=torch.bool)}):
        masked = tdi.mask_invalid({"x": x, **valid})
        assert list(masked) == ["x"]
        assert masked["x"] is x


def test_what_has_no_rows_is_handed_on():
    batch = {
        "x": torch.arange(3),
        "scale": torch.tensor(2.0),
        "levels": torch.arange(5),
        "name": "t2m",
        "valid": torch.tensor([True, False, False]),
    }
    masked = tdi.mask_invalid(batch)
    assert masked["x"].tolist() == [0]
    assert masked["name"] == "t2m"
    assert (masked["scale"].item(), len(masked["levels"])) == (2.0, 5)
    assert len(batch["x"]) == 3


def test_a_batch_of_copies_alone_has_no_row_left():
    masked = tdi.mask_invalid({"x": torch.ones(2, 5), "valid": torch.zeros(2, dtype=torch.bool)})
    assert masked["x"].shape == (0, 5)
    assert flat([masked["x"].tolist()]) == []
