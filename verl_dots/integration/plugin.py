"""Importing this module registers everything that verl-dots adds to verl.

It is the target of the `verl.plugins` entry point: `import verl` loads it in every process, in the middle of verl's own
import. verl hides an error in it (logged at DEBUG), so recipes also name it in VERL_USE_EXTERNAL_MODULES, which fails
loudly.
"""

import os

from verl_dots.integration import compat

compat.check_versions()

if os.environ.get("VERL_PLATFORM") == "cpu":  # before anything of verl asks which device there is
    from verl_dots import cpu

    cpu.activate()

from verl_dots.integration import policy_loss, trainer  # noqa: E402,F401
