"""Memory that a process frees stays with it, for the next batch."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Tells glibc not to give freed memory back to the kernel; elsewhere it does nothing.

    Every batch takes and frees the same few arrays of megabytes. Given back, each comes again as pages that the
    kernel fills with zeros one by one: a sixth of the time of a table with 30 features.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, _NEVER)
