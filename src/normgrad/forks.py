"""What must not be under way in another thread when a process forks."""

from __future__ import annotations

import threading

#: Held while modules are imported and kernels compiled: a child that was forked meanwhile would
#: have the import system's and Numba's locks held for ever, by a thread that it does not have. The
#: C libraries' forks wait for it, before anything else. (Python's own cannot: their hooks run in
#: the middle of other modules', whose locks an import may want.)
LOADING = threading.RLock()
