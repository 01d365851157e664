"""Load the profile of hypothesis.

Only folders whose tests use hypothesis import it, as it is slow to.
"""

from hypothesis import settings

settings.register_profile("sqlbeat", deadline=None)  # a busy machine is no failure
settings.load_profile("sqlbeat")
