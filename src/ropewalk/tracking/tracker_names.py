"""What the names of W&B, MLflow and TensorBoard are called here: for messages about arguments and methods of theirs."""

from __future__ import annotations

ARGUMENTS = {
    "labels=[...]": ("tags", "tag"),
    "labels=[...] or another project=": ("group", "job_type", "nested"),
    'name="..." with resume=True': ("id", "run_id"),
    "project=": ("experiment", "experiment_name", "experiment_id"),
    "name=": ("run_name", "display_name"),
    "notes=": ("description",),
    "config=": ("params", "hparams", "hyperparameters"),
    "folder=": ("dir", "log_dir", "logdir", "save_dir"),
    "store=": ("tracking_uri", "storage"),
    "nothing: a run is always kept on the disk": (
        "mode",
        "offline",
        "entity",
        "reinit",
        "anonymous",
        "sync_tensorboard",
    ),
}
"""Arguments of `track` by what to write in place of them."""
METHODS = {
    "run.log(loss=x, step=n)": ("log_metric", "log_metrics", "add_scalar", "add_scalars", "report", "track"),
    "run.log(best=x), which keeps the last, the least and the greatest value": ("summary", "define_metric"),
    "config= of rw.track, or run.config.update(...)": ("log_param", "log_params", "log_hyperparams", "add_hparams"),
    'run.label("good"), or run.note(text)': ("tags", "set_tag", "set_tags", "alert", "notes"),
    "run.artifact(path)": ("log_artifact", "log_artifacts", "save", "use_artifact", "log_code", "log_dict", "log_text"),
    "run.image(name, image)": ("add_image", "add_images", "add_figure", "log_image", "log_figure"),
    "run.checkpoint(state)": ("log_model", "save_checkpoint"),
    "run.log({name: x})": ("watch", "add_histogram"),
    "run.finish()": ("close", "end", "end_run"),
    "nothing: `ropewalk page` shows the run": ("url", "get_url"),
}
"""Attributes of a run by what to write in place of them."""

__all__ = ["ARGUMENTS", "METHODS"]
