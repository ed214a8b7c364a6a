"""The commands of Slurm: how they are run, and how their failures are explained."""

from __future__ import annotations

from ropewalk.engines.cluster_commands import ClusterCommands

_PASSING = (
    "unable to contact slurm controller",
    "socket timed out",
    "connection refused",
    "connection reset",
    "connection timed out",
    "zero bytes were transmitted",
    "insane message length",
    "transport endpoint is not connected",
    "resource temporarily unavailable",
    "temporarily unable to accept job",
    "in standby mode",
    "invalid protocol version: uninitialized",
)
_ADVICE = (
    ("invalid account", "choose an account of yours with the option account (sacctmgr show associations lists them)"),
    ("invalid partition", "choose a partition with the option partition (sinfo lists them)"),
    ("invalid qos", "choose a quality of service with the option qos (sacctmgr show qos lists them)"),
    ("invalid feature", "choose features with the option constraint (sinfo --format=%f lists them)"),
    ("reservation", "choose a reservation with the option reservation (scontrol show reservation lists them)"),
    ("submit limit", "you have as many jobs in the queue as you may; wait for some, or ask for fewer processes"),
    ("policy", "a limit of the account is reached; ask for less, or wait for your other jobs"),
    ("array", "the cluster allows smaller arrays only (MaxArraySize); ask for fewer jobs at once"),
    ("memory", "ask for less memory, or choose a partition with larger nodes"),
    ("node configuration", "no node has what is asked for; compare it with sinfo --Node --long"),
    ("group not permitted", "you may not use this partition; choose another with the option partition"),
)

SLURM = ClusterCommands(
    missing=(
        "run the launcher where Slurm's commands are (a login node, or inside a job), load their module, or install "
        "them (Debian: apt install slurm-client)"
    ),
    silent="is slurmctld up (scontrol ping)?",
    away="slurmctld does not answer, scontrol ping tells more",
    passing=_PASSING,
    advice=_ADVICE,
    noise=("sbatch: error: ", "Batch job submission failed: "),
    kept=("SLURM_CONF", "SLURM_CLUSTERS", "SLURM_JWT"),
    added={"SLURM_BITSTR_LEN": "0"},  # long lists of array tasks are cut by default
)

run_command = SLURM.run
start_command = SLURM.start
ask = SLURM.ask
