"""verl_dots.sampler in a real StatefulDataLoader, which only fetches: it neither draws, saves nor restores."""

import json

import pytest
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.unit.sampler.conftest import guesses, make, names, saved


class Rows:
    """A data set that says which row was fetched."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, row):
        return row


def loader_of(sampler, **options):
    return StatefulDataLoader(Rows(len(sampler.pool)), batch_sampler=sampler.batches, collate_fn=list, **options)


def test_a_request_is_one_batch_of_any_size():
    sampler = make(names(20))
    sampler.refresh(None, 20)
    batches = iter(loader_of(sampler))
    for size in (1, 7, 3):
        draws = sampler.request(size)
        assert next(batches) == [draw.row for draw in draws]
    first, second = sampler.request(2), sampler.draw_reference(4)
    assert [next(batches), next(batches)] == [[d.row for d in first], [d.row for d in second]]


def test_drawing_before_a_request_names_the_key_and_does_not_end_the_iteration():
    sampler = make(names(5))
    sampler.refresh(None, 5)
    batches = iter(loader_of(sampler))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="stale.*dataloader_num_workers=0"):
            next(batches)
        draws = sampler.request(2)
        assert next(batches) == [draw.row for draw in draws]


def test_prefetching_workers_are_refused():
    sampler = make(names(5))
    sampler.refresh(None, 5)
    sampler.request(2)
    with pytest.raises(RuntimeError, match="stale"):
        iter(loader_of(sampler, num_workers=1))


@pytest.mark.parametrize("iterate_first", [True, False])
def test_the_loader_neither_saves_nor_restores_nor_wipes(iterate_first):
    """Save and restore as verl does: its data.pt and our state, then requests around the lazy first iter()."""
    sampler = make(names(40))
    sampler.refresh(guesses(sampler), 30)
    loader = loader_of(sampler)
    batches = iter(loader)
    for size in (8, 8, 4):
        sampler.request(size)
        next(batches)
    state, loader_state = saved(sampler), json.loads(json.dumps(loader.state_dict()))
    assert not any(question in json.dumps(loader_state) for question in sampler.pool)

    resumed = make(names(40), seed=7)
    resumed_loader = loader_of(resumed)
    resumed_loader.load_state_dict(loader_state)
    resumed.load_state_dict(state)
    if iterate_first:
        resumed_batches = iter(resumed_loader)
    expected = [sampler.request(6), sampler.draw_reference(3)]
    got = [resumed.request(6), resumed.draw_reference(3)]  # queued before the lazy restore happens
    if not iterate_first:
        resumed_batches = iter(resumed_loader)
    assert got == expected
    assert [next(resumed_batches) for _ in range(2)] == [next(batches) for _ in range(2)]
    assert resumed.request(5) == sampler.request(5)
    assert next(resumed_batches) == next(batches)
    with pytest.raises(RuntimeError):
        next(resumed_batches)


def test_a_state_saved_under_verls_own_sampler_is_accepted():
    from torch.utils.data import SequentialSampler

    rows = Rows(20)
    plain = StatefulDataLoader(rows, batch_size=4, sampler=SequentialSampler(rows), collate_fn=list)
    assert next(iter(plain)) == [0, 1, 2, 3]
    sampler = make(names(20))
    loader = loader_of(sampler)
    loader.load_state_dict(plain.state_dict())
    sampler.refresh(None, 20)
    draws = sampler.request(3)
    assert next(iter(loader)) == [draw.row for draw in draws]


def test_its_length_is_the_pool():
    assert len(loader_of(make(names(9)))) == 9
