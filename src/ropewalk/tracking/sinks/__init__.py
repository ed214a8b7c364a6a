"""Where runs can be copied to beside their store: files, TensorBoard, MLflow, Weights & Biases. One file per sink."""

from __future__ import annotations

from ropewalk.families import Family
from ropewalk.tracking.sinks.sink import RunSink

SINKS: Family[type[RunSink] | str] = Family(
    "sink",
    {
        "csv": "ropewalk.tracking.sinks.csv_files:CsvFile",
        "jsonl": "ropewalk.tracking.sinks.jsonl:JsonLines",
        "tensorboard": "ropewalk.tracking.sinks.tensorboard:TensorBoardFiles",
        "mlflow": "ropewalk.tracking.sinks.mlflow:MLflowRun",
        "wandb": "ropewalk.tracking.sinks.wandb:WandbRun",
    },
    group="ropewalk.sinks",
    unknown=ValueError,
)
"""Sinks by name. Some need packages of others, which are imported when a sink is made."""


def make_sink(sink: str | RunSink) -> RunSink:
    """Return a sink; a name stands for the sink of `SINKS` with its defaults.

    Raises:
        TypeError: it is neither a name nor a sink.
        ValueError: there is no sink of this name; lists those there are.
        ModuleNotFoundError: the sink needs a package that is not installed; says how to install it.
    """
    made: RunSink = SINKS.make(sink, {}) if isinstance(sink, str) else sink
    if not isinstance(made, RunSink):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(
            f"sinks are names ({', '.join(SINKS)}) or objects of subclasses of ropewalk.tracking.RunSink, such as "
            f"CsvFile(path), not {made!r}"
        )
    return made


__all__ = ["SINKS", "make_sink"]
