"""Load the profile of hypothesis for every test of this folder."""

import tests.support.hypothesis_profile  # noqa: F401  # what it does, it does when it is imported
