"""Transforms of inputs: their results, their random numbers, and what they refuse."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from fedloom.client.torch import TorchClient, augment, batches
from fedloom.protocol.errors import UsageError
from fedloom.strategies import RoundSettings

IMAGES = torch.rand((9, 3, 6, 5), generator=torch.Generator().manual_seed(1))
EVERY = {
    "crop": augment.Crop(padding=2),
    "smaller": augment.Crop(size=4, padding=1),
    "flip": augment.Flip(),
    "cutout": augment.Cutout(size=3),
    "noise": augment.Noise(deviation=0.3),
    "jitter": augment.Jitter(contrast=0.5, brightness=0.2),
    "function": augment.PerExample(lambda x: x * torch.rand(()) + random.random()),
}


def draws(indices=range(9), seed=5, epoch=0, place=0):
    """The numbers of some of nine examples."""
    return augment.Draws(seed, epoch, torch.tensor(list(indices)), 9, place)


def philox(index, count, *, seed=5, epoch=0, place=0):
    """The uniform numbers of one example by NumPy alone, from the documented counter."""
    counter = [index, 0, epoch, place << 8 | 1]
    raw = np.random.Philox(key=seed, counter=counter).random_raw(4)[:count]
    return [int(value >> np.uint64(11)) / 2**53 for value in raw]


@pytest.mark.parametrize("name", EVERY)
def test_an_example_is_transformed_alike_in_any_batch(name):
    """In any order and company; otherwise in another epoch, task, place or row."""
    step = EVERY[name]
    alone = [step.train(IMAGES[i : i + 1], draws([i]))[0] for i in range(9)]
    order = [4, 0, 8]
    together = step.train(IMAGES[order], draws(order))
    for row, index in zip(together, order, strict=True):
        assert torch.equal(row, alone[index])
    for other in ({"seed": 6}, {"epoch": 1}, {"place": 1}):
        assert not torch.equal(step.train(IMAGES, draws(**other)), torch.stack(alone))
    same = IMAGES[:1].expand(9, -1, -1, -1)
    assert len({row.numpy().tobytes() for row in step.train(same, draws())}) > 1


def test_a_crop_is_a_window_of_the_padded_image():
    """Against slices of a padded NumPy array at the numbers of an independent Philox."""
    for size, padding, shape in ((None, 2, (6, 5)), (4, 1, (4, 4))):
        got = augment.Crop(size=size, padding=padding).train(IMAGES, draws()).numpy()
        for index, image in enumerate(IMAGES.numpy()):
            padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)))
            room = [padded.shape[axis + 1] - shape[axis] + 1 for axis in (0, 1)]
            top, left = (int(u * n) for u, n in zip(philox(index, 2), room, strict=True))
            window = padded[:, top : top + shape[0], left : left + shape[1]]
            np.testing.assert_array_equal(got[index], window)


def test_flip_cutout_jitter_and_noise_follow_their_formulas():
    """Each against NumPy, example by example."""
    flipped = augment.Flip(probability=0.4).train(IMAGES, draws()).numpy()
    holed = augment.Cutout(size=3).train(IMAGES, draws()).numpy()
    shifted = augment.Jitter(contrast=0.5, brightness=0.2).train(IMAGES, draws()).numpy()
    noisy = augment.Noise(deviation=0.3).train(IMAGES, draws()).numpy()
    flips = 0
    for index, image in enumerate(IMAGES.numpy()):
        u, v = philox(index, 2)
        flips += u < 0.4
        np.testing.assert_array_equal(flipped[index], image[..., ::-1] if u < 0.4 else image)
        hole = image.copy()
        top, left = int(u * 6) - 1, int(v * 5) - 1
        hole[:, max(top, 0) : top + 3, max(left, 0) : left + 3] = 0
        np.testing.assert_array_equal(holed[index], hole)
        expected = image * (1 + 0.5 * (2 * u - 1)) + 0.2 * (2 * v - 1)
        np.testing.assert_allclose(shifted[index], expected, atol=1e-6)
        stream = np.random.Philox(key=5, counter=[0, index, 0, 2])
        normal = np.random.Generator(stream).standard_normal(image.shape, np.float32)
        np.testing.assert_allclose(noisy[index], image + 0.3 * normal, atol=1e-6)
    assert 0 < flips < 9


def test_places_of_crops_are_uniform():
    """Chi-square of 25 places: below the 99.9 % quantile of 24 degrees of freedom, 51.2."""
    many = augment.Draws(3, 0, torch.arange(4000), 4000)
    marked = torch.zeros((4000, 1, 5, 5))
    marked[:, :, 2, 2] = 1
    places = augment.Crop(padding=2).train(marked, many).flatten(1).argmax(dim=1)
    counts = np.bincount(places.numpy(), minlength=25)
    assert ((counts - 160) ** 2 / 160).sum() < 51.2


def test_evaluation_is_normalised_and_cropped_to_the_centre():
    """Random transforms are for training only."""
    for name in ("crop", "flip", "cutout", "noise", "jitter", "function"):
        assert torch.equal(EVERY[name].evaluate(IMAGES), IMAGES)
    assert torch.equal(EVERY["smaller"].evaluate(IMAGES), IMAGES[..., 1:5, 0:4])
    step = augment.Normalise(mean=[0.1, 0.2, 0.3], deviation=[1, 2, 4])
    mean, deviation = np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 4.0])
    expected = (IMAGES.numpy() - mean[:, None, None]) / deviation[:, None, None]
    np.testing.assert_allclose(step.evaluate(IMAGES), expected, atol=1e-6)
    assert torch.equal(step.train(IMAGES, draws()), step.evaluate(IMAGES))


@pytest.mark.parametrize("batch_size", [0, 4])
def test_batches_after_a_skip_are_those_of_an_uninterrupted_training(batch_size):
    """A resumed training draws the numbers of its epochs; epochs differ."""
    source = batches.tensors(IMAGES, torch.arange(9))
    made = augment.Transformed(source, augment.Pipeline.of([EVERY["crop"], EVERY["noise"]]))
    whole = [x for x, _ in made.drawn(batch_size, 11, 0, 8)]
    rest = [x for x, _ in made.drawn(batch_size, 11, 5, 8)]
    assert all(torch.equal(a, b) for a, b in zip(whole[5:], rest, strict=True))
    plain = [y.tolist() for _, y in source.drawn(batch_size, 11, 0, 8)]
    assert [y.tolist() for _, y in made.drawn(batch_size, 11, 0, 8)] == plain
    assert not torch.equal(whole[0], whole[3 if batch_size else 1])


def test_a_function_leaves_the_random_states_as_they_were():
    """Dropout after it draws the same numbers as without it."""
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    expected = torch.rand(2), np.random.rand(2), random.random()  # noqa: NPY002
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    augment.PerExample(lambda x: x + np.random.rand() + random.random()).train(  # noqa: NPY002
        IMAGES, draws()
    )
    got = torch.rand(2), np.random.rand(2), random.random()  # noqa: NPY002
    assert torch.equal(got[0], expected[0])
    assert (got[1] == expected[1]).all()
    assert got[2] == expected[2]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (augment.Crop, "needs padding or size"),
        (lambda: augment.Crop(padding=-1), "crop.padding as a whole number >= 0"),
        (lambda: augment.Crop(size=7).output_shape((3, 6, 5)), "crop.size <= 5 for images of 6×5"),
        (lambda: augment.Cutout(size=6).output_shape((3, 6, 5)), "cutout.size <= 5"),
        (lambda: augment.Flip(probability=2), "flip.probability as a number of 0 to 1"),
        (lambda: augment.Flip().output_shape((12,)), r"flip needs images .* got .*\(12,\)"),
        (lambda: augment.Noise(deviation=float("nan")), r"noise.deviation .* 0 to 1e\+30"),
        (augment.Jitter, "needs contrast or brightness"),
        (lambda: augment.Normalise(mean=0, deviation=0), "normalise.deviation .* of 1e-30 to"),
        (
            lambda: augment.Normalise(mean=[0, 0], deviation=1).output_shape((3, 6, 5)),
            "one number, or as 3",
        ),
        (lambda: augment.Pipeline.of([]), "list of one or more"),
        (lambda: augment.Pipeline.of(["flip"]), "a Transform or a function"),
        (lambda: augment.Pipeline.of([augment.Flip]), "a Transform or a function"),
        (
            lambda: augment.PerExample(lambda x: x[0]).train(IMAGES, draws()),
            r"float32 of shape \(3, 6, 5\), got torch.float32 of shape \(6, 5\)",
        ),
    ],
)
def test_impossible_settings_are_refused(make, message):
    """With what was expected, what came, and a remedy."""
    with pytest.raises(UsageError, match=message):
        make()


@pytest.mark.parametrize(
    ("dtype", "target", "message"),
    [("int64", (), "such as tokens of a text"), ("float32", (6, 5), "not of targets")],
)
def test_text_and_targets_with_places_are_refused(dtype, target, message):
    """A flip would move a picture and leave its mask."""
    with pytest.raises(UsageError, match=message):
        augment.Pipeline.of([augment.Flip()]).output_shape((3, 6, 5), dtype, target)


def test_a_client_refuses_loaders_and_inputs_that_do_not_fit():
    """Before it trains on anything wrong."""
    data = TensorDataset(IMAGES, torch.zeros(9, dtype=torch.int64))
    model = nn.Linear(2, 2)
    with pytest.raises(UsageError, match="got a DataLoader"):
        TorchClient(model, DataLoader(data), cross_entropy, transform=[augment.Flip()])
    source = augment.Transformed(
        batches.tensors(torch.zeros(4, 7), torch.zeros(4)), augment.Pipeline.of([augment.Flip()])
    )
    asked = RoundSettings(epochs=1, steps=None, batch_size=2, learning_rate=1)
    with pytest.raises(UsageError, match="flip needs images"):
        next(batches.training(source, asked, 0))
