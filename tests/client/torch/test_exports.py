"""Models used and written for other programs: the same answers there as here."""

import importlib.util
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from fedloom.client import Model, save_file
from fedloom.client.torch import TorchClient, parameters
from fedloom.protocol.errors import UsageError

X = torch.randn(7, 6, generator=torch.Generator().manual_seed(3))
Y = torch.arange(7) % 3


def network(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture
def model(tmp_path):
    """A model of other numbers than the module that it is put into."""
    path = tmp_path / "model.safetensors"
    save_file(parameters(network(seed=1)), path)
    return Model(path=path)


def expected():
    with torch.no_grad():
        return network(seed=1).eval()(X).numpy()


def test_a_module_answers_with_the_models_numbers(model):
    """Not with those that it was built with, and as in evaluation."""
    np.testing.assert_allclose(model.predict(network(), X), expected(), rtol=1e-6, atol=1e-6)
    client = TorchClient(network(), (X, Y), nn.functional.cross_entropy)
    np.testing.assert_allclose(model.predict(client, X.numpy()), expected(), rtol=1e-6, atol=1e-6)


def test_an_estimator_answers_with_the_models_numbers(tmp_path):
    """An estimator of scikit-learn, or a client of one; neither is changed."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    from fedloom.client.sklearn import sklearn_client

    path = tmp_path / "linear.safetensors"
    save_file({"coef": np.array([2.0, -1.0]), "intercept": np.array([0.5])}, path)
    x = np.array([[1.0, 1.0], [0.0, 3.0]])
    estimator = linear_model.SGDRegressor()
    assert Model(path=path).predict(estimator, x) == pytest.approx([1.5, -2.5])
    assert not hasattr(estimator, "coef_")
    client = sklearn_client(estimator, (x, np.zeros(2)))
    assert Model(path=path).predict(client, x) == pytest.approx([1.5, -2.5])


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")
def test_torchscript_answers_as_the_module_does(model, tmp_path):
    """Read back without fedloom, for another number of examples than it was written with."""
    out = model.export(tmp_path / "model.pt", "torchscript", network(), X[:3])
    loaded = torch.jit.load(str(out))
    np.testing.assert_allclose(loaded(X).detach(), expected(), rtol=1e-5, atol=1e-5)
    assert [p.name for p in tmp_path.iterdir() if "tmp" in p.name] == []


@pytest.mark.long
def test_torch_export_answers_as_the_module_does(model, tmp_path):
    """A client's own examples say what inputs look like."""
    client = TorchClient(network(), (X, Y), nn.functional.cross_entropy)
    out = model.export(tmp_path / "model.pt2", "torch-export", client)
    loaded = torch.export.load(str(out)).module()
    np.testing.assert_allclose(loaded(X).detach(), expected(), rtol=1e-5, atol=1e-5)


@pytest.mark.long
@pytest.mark.skipif(not importlib.util.find_spec("onnxscript"), reason="needs fedloom[onnx]")
def test_onnx_answers_as_the_module_does(model, tmp_path):
    """By onnxruntime and by ONNX's own reference."""
    import onnxruntime
    from onnx.reference import ReferenceEvaluator

    out = model.export(tmp_path / "model.onnx", "onnx", network(), X[:3])
    for session in (onnxruntime.InferenceSession(str(out)), ReferenceEvaluator(str(out))):
        (answer,) = session.run(None, {"x": X.numpy()})
        np.testing.assert_allclose(answer, expected(), rtol=1e-4, atol=1e-4)


def test_without_onnx_it_is_said_what_to_install(model, tmp_path, monkeypatch):
    """An extra that is missing is no traceback."""
    import sys

    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UsageError, match=r"fedloom\[onnx\]"):
        model.export(tmp_path / "model.onnx", "onnx", network(), X[:3])


class Branching(nn.Module):
    """Answers by a branch that tracing does not see."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        return self.layer(x) if len(x.tolist()) > 1 else x[:, :3]


def test_what_would_answer_otherwise_is_refused_and_leaves_no_file(tmp_path):
    """A module that branches on its inputs is no TorchScript trace."""
    path = tmp_path / "model.safetensors"
    save_file(parameters(Branching()), path)
    with pytest.raises(UsageError, match="branch"):
        Model(path=path).export(tmp_path / "model.pt", "torchscript", Branching(), X)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


class Signed(nn.Module):
    """Answers by a branch on the values; `plain` is a way to say so that nothing compiles."""

    def __init__(self, plain=None):
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.plain = plain

    def forward(self, x):
        if self.plain is not None:
            return self.layer(x) if self.plain(x) else self.layer(-x)
        return self.layer(x) if bool(x.sum() > 0) else self.layer(-x)


def test_a_branch_on_values_is_kept_or_refused(tmp_path):
    """What tracing the example alone gives answers wrongly to inputs of the other sign."""
    path = tmp_path / "model.safetensors"
    module = Signed()
    save_file(parameters(module), path)
    x = torch.ones(4, 6)
    out = Model(path=path).export(tmp_path / "model.pt", "torchscript", module, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = torch.jit.load(str(out))
    for sign in (1, -1):
        assert torch.allclose(loaded(sign * x), module(sign * x))
    beyond = Signed(plain=lambda x: bool(sum(x.flatten().tolist()) > 0))
    with pytest.raises(UsageError, match="branch"):
        Model(path=path).export(tmp_path / "other.pt", "torchscript", beyond, x)
    assert not (tmp_path / "other.pt").exists()


@pytest.mark.parametrize(
    ("kind", "target", "example", "words"),
    [
        ("onnx", None, None, "code of a torch module"),
        ("pickle", network(), X, "format"),
        ("torchscript", network(), None, "example"),
        ("torchscript", network(), X[:1], "two or more"),
        ("torchscript", nn.Linear(6, 2), X, "built alike"),
    ],
)
def test_what_cannot_be_exported_is_said(  # noqa: PLR0917 - fixtures and parameters
    model, tmp_path, kind, target, example, words
):
    """Each with its own sentence."""
    with pytest.raises(UsageError, match=words):
        model.export(tmp_path / "out", kind, target, example)


def test_what_cannot_predict_is_said(model):
    """A target is a module or an estimator."""
    with pytest.raises(UsageError, match="params"):
        model.predict(object(), X)
