"""Data for `datasets.load_dataset`, by the names that Flower's examples ask for.

Images are scikit-learn's digits in the size and colours of the data set that they replace, flowers
are its irises, and the rest is drawn with a fixed seed in the columns of the original. `rows` of
FLOWER_EXAMPLE bounds the rows for training; a test set has a quarter of them.
"""

import functools
import json
import os

import numpy as np

LETTERS = np.array([*"abcdefghijklmnopqrstuvwxyz"])


def datasets(module):
    def load_dataset(path, name=None, *, split=None, **_):  # noqa: ARG001 - as of the original
        if path not in MAKERS:
            raise ValueError(f"No replacement for the data set {path!r}: add it to {__file__}.")
        rows = json.loads(os.environ["FLOWER_EXAMPLE"])["rows"]
        rng = np.random.default_rng(7)
        parts = {"train": MAKERS[path](rng, rows), "test": MAKERS[path](rng, rows // 4)}
        if split is not None:
            return as_dataset(module, parts[split])
        return module.DatasetDict({k: as_dataset(module, v) for k, v in parts.items()})

    module.load_dataset = load_dataset
    apply = module.Dataset.map

    @functools.wraps(apply)
    def in_this_process(*arguments, num_proc=None, **settings):  # noqa: ARG001
        return apply(*arguments, **settings)  # a fork of a process with JAX's threads can hang

    module.Dataset.map = in_this_process


def as_dataset(module, columns):
    if any(isinstance(values, np.ndarray) and values.ndim == 2 for values in columns.values()):
        return wide(module, columns)
    return module.Dataset.from_dict(
        {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in columns.items()}
    )


def wide(module, columns):
    """A table of half a million rows: by Arrow, without a Python object for each number."""
    import pyarrow as pa

    arrays = {
        name: pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
        if values.ndim == 2
        else pa.array(values)
        for name, values in columns.items()
    }
    return module.Dataset(pa.table(arrays))


def digits(image, label, side, colours):
    """Columns of digits as images of `side` pixels, in one colour or three."""

    def make(rng, rows):
        from PIL import Image
        from sklearn.datasets import load_digits

        x, y = load_digits(return_X_y=True)
        chosen = rng.permutation(len(x))[np.arange(rows) % len(x)]
        pictures = []
        for i in chosen:
            pixels = Image.fromarray((x[i].reshape(8, 8) * 15.9).astype(np.uint8))
            pictures.append(pixels.resize((side, side)).convert("RGB" if colours == 3 else "L"))
        return {image: pictures, label: y[chosen]}

    return make


def irises(*names, target, as_text=False, numbered=False):
    def make(rng, rows):
        from sklearn.datasets import load_iris

        found = load_iris()
        chosen = rng.permutation(len(found.data))[:rows]
        columns = {"Id": np.arange(len(chosen))} if numbered else {}
        columns |= {name: found.data[chosen, place] for place, name in enumerate(names)}
        kinds = found.target[chosen]
        return columns | {target: found.target_names[kinds] if as_text else kinds}

    return make


def words(rng, rows, kinds):
    """A column of one of so many made-up words."""
    return np.array(["".join(rng.choice(LETTERS, 6)) for _ in range(kinds)])[
        rng.integers(kinds, size=rows)
    ]


def census(rng, rows):
    age = rng.integers(17, 90, rows)
    hours = rng.integers(1, 99, rows)
    education = rng.integers(1, 17, rows)
    rich = 0.02 * age + 0.02 * hours + 0.2 * education + rng.normal(size=rows) > 4
    return {
        "age": age,
        "workclass": words(rng, rows, 8),
        "fnlwgt": rng.integers(10_000, 1_000_000, rows),
        "education": words(rng, rows, 16),
        "education.num": education,
        "marital.status": words(rng, rows, 7),
        "occupation": words(rng, rows, 14),
        "relationship": words(rng, rows, 6),
        "race": words(rng, rows, 5),
        "sex": words(rng, rows, 2),
        "capital.gain": rng.integers(0, 9_999, rows),
        "capital.loss": rng.integers(0, 4_000, rows),
        "hours.per.week": hours,
        "native.country": words(rng, rows, 30),
        "income": np.where(rich, ">50K", "<=50K"),
    }


def higgs(rng, rows):
    x = rng.standard_normal((rows, 28), dtype=np.float32)
    return {"label": (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(np.float32), "inputs": x}


def titanic(rng, rows):
    sex = rng.choice(["male", "female"], rows)
    kind = rng.integers(1, 4, rows)
    title = np.where(sex == "male", "Mr. ", "Mrs. ")
    return {
        "Survived": ((sex == "female") | (kind + rng.normal(size=rows) < 1)).astype(int),
        "Pclass": kind,
        "Name": np.char.add(title, words(rng, rows, rows)),
        "Sex": sex,
        "Age": rng.uniform(1, 80, rows).round(1),
        "Siblings/Spouses Aboard": rng.integers(0, 5, rows),
        "Parents/Children Aboard": rng.integers(0, 4, rows),
        "Fare": rng.uniform(5, 200, rows).round(2),
    }


def reviews(rng, rows):
    label = rng.integers(2, size=rows)
    texts = [" ".join(rng.choice([WORDS[n], WORDS[2]][rng.integers(2)], 20)) for n in label]
    return {"text": np.array(texts), "label": label}


WORDS = [
    ["bad", "dull", "slow", "poor", "boring"],
    ["good", "bright", "fast", "rich", "funny"],
    ["the", "film", "plot", "actor", "scene", "a", "is", "was"],
]
MAKERS = {
    "uoft-cs/cifar10": digits("img", "label", 32, 3),
    "ylecun/mnist": digits("image", "label", 28, 1),
    "zalando-datasets/fashion_mnist": digits("image", "label", 28, 1),
    "nelorth/oxford-flowers": digits("image", "label", 64, 3),
    "hitorilabs/iris": irises(
        "sepal_length", "sepal_width", "petal_length", "petal_width", target="species"
    ),
    "scikit-learn/iris": irises(
        "SepalLengthCm", "SepalWidthCm", "PetalLengthCm", "PetalWidthCm",
        target="Species", as_text=True, numbered=True,
    ),
    "scikit-learn/adult-census-income": census,
    "jxie/higgs": higgs,
    "julien-c/titanic-survival": titanic,
    "stanfordnlp/imdb": reviews,
}  # fmt: skip
