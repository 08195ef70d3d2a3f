"""Turn kernel source into a library or a prepared module, on the host that judges the kernel.

The input is a ``KernelSource``, which contains only text and is valid on any host. The result is a ``BuildReport``. The
library stays in the host's ``BuildCache``, where the host's judge looks it up with the same ``KernelSource``.
"""
