"""A pytest plugin: hypothesis tries the same examples each time, and does not look for the smallest one that fails."""

from hypothesis import HealthCheck, Phase, settings

settings.register_profile(
    "mutants",
    phases=[Phase.explicit, Phase.generate],
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine kills no mutant
)
settings.load_profile("mutants")
