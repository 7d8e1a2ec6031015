"""Named in VERL_USE_EXTERNAL_MODULES by a test: `time.time` and `time.time_ns` go back an hour once $DOTS_CLOCK exists.

In every process that imports verl, for every library in it. Not shifted: `datetime.now`, C++ code, file times.
"""

import os
import time

HOUR_S = 3600
SHIFTED = os.environ["DOTS_CLOCK"]
_time, _time_ns = time.time, time.time_ns

time.time = lambda: _time() - HOUR_S * os.path.exists(SHIFTED)
time.time_ns = lambda: _time_ns() - HOUR_S * 10**9 * os.path.exists(SHIFTED)
