"""Property tests judge results, not the speed of a busy machine."""

from hypothesis import settings

settings.register_profile("strategies", deadline=None)
settings.load_profile("strategies")
