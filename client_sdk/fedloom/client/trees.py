"""Federated XGBoost by bagging: each client boosts trees on the model, and all trees are kept.

Trees have no mean. So the model is one tensor of bytes with a place for each round and client, and
a client sends only the bytes of its place. Each coordinate is averaged over the clients that cover
it; here this is one client, so the mean is its value. Rounds, sums, restarts and refusals work as
in any other run.

Sources: Chen and Guestrin 2016, XGBoost: A Scalable Tree Boosting System,
https://arxiv.org/abs/1603.02754. Bagging over clients as in the examples of NVIDIA FLARE, which
divides the learning rate by the number of clients, and of Flower, which does not; reimplemented.

Invariants: the booster depends only on the bytes, with trees in the order of rounds, then of client
names; with one client it equals the booster of XGBoost alone.
"""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedloom.client.api import Client, Metrics, Params, SliceOf, Task, Update
from fedloom.protocol.errors import IntegrityError, UsageError

TREES: Final = "trees"
"""The model's only tensor: uint8 [rounds, clients, capacity]."""
_HEAD: Final = 8
"""Bytes of a place's header: length and CRC-32 of the rest; uint32, little endian."""
_MOST_BYTES: Final = 1 << 26
"""Maximum decompressed bytes of a place."""
_DEFAULTS: Final = {"base_score": 0.5, "nthread": 1}
"""The base score is fixed, because an estimated one would differ between clients."""


def empty(clients: Sequence[str], rounds: int, capacity_bytes: int = 1 << 14) -> Params:
    """Return the initial model of a run.

    Args:
        clients: names of all clients that may take part.
        rounds: maximum number of rounds.
        capacity_bytes: for one client's trees of one round; a tree of depth 4 takes about 250.
    """
    return {TREES: np.zeros((rounds, len(clients), capacity_bytes), np.uint8)}


def booster(model: Params, settings: Mapping[str, Any]) -> Any:
    """Return the `xgboost.Booster` of a model, or None if it has no trees.

    Args:
        model: from `fedloom model export` and `load_file`.
        settings: of XGBoost, the same as on the clients.

    Raises:
        IntegrityError: a place does not hold trees.
        UsageError: XGBoost is not installed.
    """
    grown = [
        _unpacked(place[:_HEAD].tobytes(), place[_HEAD:], (row, column))
        for row, column in np.argwhere(_is_filled(model[TREES]))
        for place in (model[TREES][row, column],)
    ]
    return _assembled(grown, settings) if grown else None


def matrix(x: NDArray[Any], y: NDArray[Any] | None, settings: Mapping[str, Any]) -> Any:
    """Return an `xgboost.DMatrix`.

    Raises:
        UsageError: XGBoost is not installed.
    """
    with _threads(settings) as xgboost:
        return xgboost.DMatrix(x, label=y)


class TreeClient(Client):
    """Boosts trees on local data.

        client = TreeClient(x, y, {"objective": "binary:logistic", "max_depth": 4})
        fedloom.client.run(client, config="client.toml")

    In a run, `train.steps` is the number of boosting steps of a client in a round,
    `train.learning_rate` is XGBoost's eta, and `config.clients` lists the names of all clients,
    separated by commas.

    Args:
        x: features, float [examples, features].
        y: targets, [examples]; class numbers for a classifier.
        settings: of `xgboost.train`. Default: `base_score` 0.5 and `nthread` 1; eta is the run's.
        evaluate: a pair (x, y), never trained on; None for no evaluation.
        shrink: divide eta by the number of clients, because a round adds the trees of all.

    Raises:
        UsageError: XGBoost is not installed, or there is no example.
    """

    def __init__(
        self,
        x: NDArray[Any],
        y: NDArray[Any],
        settings: Mapping[str, Any],
        *,
        evaluate: tuple[NDArray[Any], NDArray[Any]] | None = None,
        shrink: bool = True,
    ) -> None:
        if not len(y):
            raise UsageError("Expected at least one example to train on, got none.")
        self._settings = dict(settings)
        self._data = matrix(x, y, settings)
        self._held_out = None if evaluate is None else matrix(*evaluate, settings)
        self._shrink = shrink

    def train(self, params: Params, task: Task) -> Update:
        """Boost on the trees so far; return the new trees in this client's place.

        Raises:
            UsageError: the run's model does not hold trees, or the new trees are too large.
        """
        names = sorted(name.strip() for name in str(task.config.get("clients", "")).split(","))
        row, column = self._place(params, names, task.client)
        eta = task.settings.learning_rate / (len(names) if self._shrink else 1)
        before = booster(params, self._settings)
        with _threads(self._settings) as xgboost:
            grown = xgboost.train(
                {**_DEFAULTS, **self._settings, "eta": eta},
                self._data,
                num_boost_round=task.settings.steps or task.settings.epochs or 1,
                xgb_model=before,
                callbacks=[_until_stopped(xgboost, task)],
            )
        if task.dropped:  # the result is not sent
            return Update({}, self._data.num_row())
        place = _packed(grown, 0 if before is None else before.num_boosted_rounds())
        capacity = params[TREES].shape[2]
        if len(place) > capacity:
            raise UsageError(
                f"Expected trees of at most {capacity} bytes, got {len(place)}. Begin the run from "
                "a model with more capacity_bytes, or train fewer or smaller trees per round."
            )
        ranges = ((row, row + 1), (column, column + 1), (0, len(place)))
        values = np.frombuffer(place, np.uint8).reshape(1, 1, -1)
        metrics = _measured(grown, self._data)
        return Update({TREES: SliceOf(values, ranges)}, self._data.num_row(), metrics)

    def evaluate(self, params: Params, task: Task) -> tuple[int, Metrics]:  # noqa: ARG002 - as asked
        """Evaluate the trees so far; 0 examples before the first round."""
        found = booster(params, self._settings)
        if self._held_out is None or found is None:
            return 0, {}
        return self._held_out.num_row(), _measured(found, self._held_out)

    def can_evaluate(self) -> bool:
        """Whether the client has data for evaluation."""
        return self._held_out is not None

    @staticmethod
    def _place(params: Params, names: Sequence[str], client: str) -> tuple[int, int]:
        """The row of the first round without trees, and the column of this client."""
        trees = params.get(TREES)
        if trees is None or trees.ndim != 3 or trees.dtype != np.uint8:
            raise UsageError(
                "Expected a model from fedloom.client.trees.empty, got one with the tensors "
                f"{', '.join(list(params)[:4])}."
            )
        if client not in names or len(names) != trees.shape[1]:
            raise UsageError(
                f"Expected {trees.shape[1]} names in config.clients, {client!r} among them, got "
                f"{', '.join(names)}."
            )
        filled = _is_filled(trees).any(axis=1)
        if filled.all():
            raise UsageError(
                f"Expected at most {len(trees)} rounds of trees, got one more. Begin the run from "
                "a model with more rounds."
            )
        return int(np.argmin(filled)), names.index(client)


def _is_filled(trees: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Whether a place holds trees, bool [rounds, clients]."""
    return np.asarray(trees[:, :, :4].any(axis=2))


def _packed(grown: Any, boosted_before: int) -> bytes:
    model = _model_of(_learner(grown))
    indptr = model["iteration_indptr"]
    first = indptr[boosted_before]
    new = {
        "trees": model["trees"][first:],
        "info": model["tree_info"][first:],
        "boosted": np.diff(indptr[boosted_before:]).tolist(),
    }
    body = zlib.compress(json.dumps(new, separators=(",", ":")).encode(), 9)
    head = np.array([len(body), zlib.crc32(body)], "<u4").tobytes()
    return head + body


def _unpacked(head: bytes, rest: NDArray[np.uint8], place: tuple[int, int]) -> dict[str, Any]:
    size, crc = np.frombuffer(head, "<u4").tolist()
    body = rest[:size].tobytes()
    problem = "bytes of another checksum"
    if zlib.crc32(body) == crc:
        try:
            inflated = zlib.decompressobj().decompress(body, _MOST_BYTES)
            found: dict[str, Any] = json.loads(inflated)
        except (ValueError, zlib.error) as error:
            problem = str(error)
        else:
            return found
    raise IntegrityError(
        f"Expected trees in place {place[1]} of round {place[0]}, got {problem}. Trees need "
        'strategy.name = "fedavg" and a server_learning_rate of 1.'
    )


def _assembled(grown: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> Any:
    """A booster of several clients' trees, in order."""
    features = int(grown[0]["trees"][0]["tree_param"]["num_feature"])
    nothing = matrix(np.zeros((1, features), np.float32), np.zeros(1), settings)
    with _threads(settings) as xgboost:
        made = xgboost.train({**_DEFAULTS, **settings}, nothing, num_boost_round=0)
    document = _learner(made)
    model = _model_of(document)
    trees = [tree for each in grown for tree in each["trees"]]
    model["trees"] = [{**tree, "id": number} for number, tree in enumerate(trees)]
    model["tree_info"] = [info for each in grown for info in each["info"]]
    boosted = [count for each in grown for count in each["boosted"]]
    model["iteration_indptr"] = [0, *np.cumsum(boosted).tolist()]
    model["gbtree_model_param"]["num_trees"] = str(len(trees))
    with _threads(settings):
        made.load_model(bytearray(json.dumps(document).encode()))
    return made


def _learner(made: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(made.save_raw("json"))
    return document


def _model_of(document: Mapping[str, Any]) -> dict[str, Any]:
    booster_of = document["learner"]["gradient_booster"]
    if "model" not in booster_of:
        raise UsageError(f"Expected the booster gbtree of XGBoost, got {booster_of.get('name')!r}.")
    model: dict[str, Any] = booster_of["model"]
    return model


def _measured(made: Any, data: Any) -> dict[str, float]:
    """XGBoost's metric of the objective as `loss`, and for classifiers `accuracy`."""
    found = {"loss": float(made.eval(data).rpartition(":")[2])}
    objective = str(json.loads(made.save_config())["learner"]["objective"]["name"])
    scores = made.predict(data)
    if objective == "multi:softprob":
        found["accuracy"] = float(np.mean(scores.argmax(axis=1) == data.get_label()))
    elif objective == "binary:logistic":
        found["accuracy"] = float(np.mean((scores > 0.5) == data.get_label()))
    return found


@contextmanager
def _threads(settings: Mapping[str, Any]) -> Iterator[Any]:
    """XGBoost with the number of threads in the settings.

    Its thread pool does not survive a fork, such as into a simulation's workers: loading a model
    there blocks forever with more than one thread.
    """
    xgboost = _xgboost()
    with xgboost.config_context(nthread=int(settings.get("nthread", _DEFAULTS["nthread"]))):
        yield xgboost


def _until_stopped(xgboost: Any, task: Task) -> Any:
    """A callback of XGBoost that reports progress, and ends the boosting on request."""
    rounds = task.settings.steps or task.settings.epochs or 1

    class UntilStopped(xgboost.callback.TrainingCallback):  # type: ignore[misc]
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            del model, evals_log
            task.progress((epoch + 1, rounds))
            return task.should_stop()

    return UntilStopped()


def _xgboost() -> Any:
    try:
        import xgboost  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        raise UsageError("XGBoost is not installed: pip install 'fedloom[xgboost]'.") from error
    return xgboost
