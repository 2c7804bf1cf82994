import torch

from sfumato_trainer.stages.sampler import PermutationSampler


def _sampler(seed: int = 0) -> PermutationSampler:
    return PermutationSampler(7, 3, torch.Generator().manual_seed(seed))


def test_every_picture_once_an_epoch_with_a_short_tail() -> None:
    sampler = _sampler()
    orders = []
    for epoch in (1, 2):
        batches = [sampler.next_batch() for _ in range(3)]
        assert [len(batch) for batch in batches] == [3, 3, 1]
        assert sampler.epoch == epoch
        orders.append([index for batch in batches for index in batch])
        assert sorted(orders[-1]) == list(range(7))
    assert orders[0] != orders[1]


def test_restored_in_the_middle_of_an_epoch_it_continues() -> None:
    generator = torch.Generator().manual_seed(0)
    sampler = PermutationSampler(7, 3, generator)
    sampler.next_batch()
    tensors, record = sampler.capture()
    state = generator.get_state()
    expected = [sampler.next_batch() for _ in range(5)]
    other_generator = torch.Generator()
    other_generator.set_state(state)
    other = PermutationSampler(7, 3, other_generator)
    other.restore(tensors, record)
    assert [other.next_batch() for _ in range(5)] == expected
