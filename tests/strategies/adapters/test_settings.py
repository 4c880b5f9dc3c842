"""Settings of adapters: models and updates that do not fit are refused by name."""

import numpy as np
import pytest

from fedloom.strategies import Full, Mask, Slice
from fedloom.strategies.adapters.settings import Adapters
from support.adapters import OTHER, REST, A, B, model_of, specs_of

FREEZE = Adapters(aggregate="freeze_a")
PRODUCT = Adapters(aggregate="product")
SPECS = specs_of(model_of())
WITH_REST = specs_of(model_of(rest=True))


def test_what_stays_is_neither_trained_nor_sent():
    """A under freeze_a; the difference to the frozen weight always."""
    assert FREEZE.frozen(WITH_REST) == {A, REST}
    assert PRODUCT.frozen(WITH_REST) == {REST}
    assert Adapters().frozen(SPECS) == frozenset()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"aggregate": "mean"}, "factors, freeze_a, product, stack"),
        ({"aggregate": "product", "rest": "keep"}, "drop, send"),
        ({"aggregate": "stack", "rest": "send"}, 'with aggregate = "product"'),
        ({"scale": 0.0}, "scale > 0"),
    ],
)
def test_bad_settings_are_refused(settings, said):
    """When they are built."""
    with pytest.raises(ValueError, match=said):
        Adapters(**settings)


def test_models_that_do_not_fit_are_refused():
    """No adapters, a missing difference, a factor that is not sent, other adapters of peft."""
    names = {A, B, OTHER}
    with pytest.raises(ValueError, match="Expected adapters with"):
        FREEZE.check_model({OTHER: SPECS[OTHER]}, names)
    with pytest.raises(ValueError, match="--adapter-rest"):
        Adapters(aggregate="stack").check_model(SPECS, names)
    with pytest.raises(ValueError, match=r"train\.only leaves out"):
        PRODUCT.check_model(SPECS, {B})
    with pytest.raises(ValueError, match="is no product B A"):
        PRODUCT.check_model(SPECS | {"x.lora_magnitude_vector": SPECS[OTHER]}, names)
    with pytest.raises(ValueError, match="a rank of at most 4"):
        PRODUCT.check_model(specs_of(model_of(4, 20, 6)), names)
    Adapters(aggregate="stack").check_model(WITH_REST, names)
    Adapters().check_model({OTHER: SPECS[OTHER]}, {OTHER})


def test_ranks_of_updates():
    """Leading ranks of both factors with products; the model's rank with factors."""
    both = {A: Slice(((0, 2), (0, 20))), B: Slice(((0, 12), (0, 2)))}
    PRODUCT.check_update(both, SPECS)
    PRODUCT.check_update({A: Full(), B: Full()}, SPECS)
    PRODUCT.check_update({OTHER: Full()}, SPECS)
    for settings in (FREEZE, Adapters()):
        settings.check_update({B: Full()}, SPECS)
        with pytest.raises(ValueError, match="Set the device's rank to 6, or run with product"):
            settings.check_update({B: both[B]}, SPECS)
    wrong = [
        {A: both[A]},
        {A: both[A], B: Full()},
        {A: Slice(((1, 3), (0, 20))), B: both[B]},
        {A: Slice(((0, 2), (0, 19))), B: both[B]},
        {A: Slice(((0, 0), (0, 20))), B: Slice(((0, 12), (0, 0)))},
        {A: Mask(np.ones(120, np.bool_)), B: Full()},
        {A: None, B: Full()},
    ]
    for covered in wrong:
        with pytest.raises(ValueError, match="Expected"):
            PRODUCT.check_update(covered, SPECS)
