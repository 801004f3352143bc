"""What every test has: examples of Hypothesis are counted, not timed, for machines are busy."""

from hypothesis import HealthCheck, settings

settings.register_profile("safewrite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("safewrite")
