"""Records the learning curves of `digits_curves.npz`: 64 configurations of a network on scikit-learn's digits.

    python -m tests.search.record_curves

A curve (a row of `rights`) is the number of the 540 validation images that are classified correctly after each of 81
epochs; the rows of `hyperparameters` have a column for each of `names`. It takes about a minute of CPU time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

CURVES = Path(__file__).with_name("digits_curves.npz")
NUM_CONFIGURATIONS, NUM_EPOCHS, NUM_VALIDATION = 64, 81, 540


def configuration(rng: np.random.Generator) -> dict[str, float]:
    """A configuration drawn at random: the learning rate counts most, and slow ones end well."""
    return {
        "learning_rate": 10 ** rng.uniform(-4.5, 0.3),
        "momentum": rng.uniform(0.0, 0.95),
        "alpha": 10 ** rng.uniform(-6, 0),
        "hidden": int(2 ** rng.uniform(2, 6)),
        "batch_size": int(2 ** rng.uniform(4, 8)),
    }


def curve(values: dict[str, float], seed: int) -> list[int]:
    """The number of images that are right, after each epoch."""
    images, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        images / 16, labels, test_size=NUM_VALIDATION, random_state=0, stratify=labels
    )
    network = MLPClassifier(
        hidden_layer_sizes=(int(values["hidden"]),),
        solver="sgd",
        learning_rate_init=values["learning_rate"],
        momentum=values["momentum"],
        alpha=values["alpha"],
        batch_size=int(values["batch_size"]),  # pyright: ignore[reportArgumentType]  # its default is "auto"
        random_state=seed,
    )
    rights: list[int] = []
    for _ in range(NUM_EPOCHS):
        network.partial_fit(train_x, train_y, classes=np.arange(10))
        rights.append(int(np.sum(network.predict(test_x) == test_y)))
    return rights


def main() -> None:
    rng = np.random.default_rng(20)
    drawn = [configuration(rng) for _ in range(NUM_CONFIGURATIONS)]
    rights = [curve(values, seed) for seed, values in enumerate(drawn)]
    np.savez_compressed(
        CURVES,
        rights=np.array(rights, np.uint16),
        names=np.array(list(drawn[0])),
        hyperparameters=np.array([list(values.values()) for values in drawn], np.float32),
    )


if __name__ == "__main__":
    main()
