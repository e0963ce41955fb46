"""The maintainers' benchmark: normgrad and its peers compute the same results, case by case.

``suite`` defines the cases, ``data`` makes their tensors, and ``contenders``, ``compositions`` and
``steps`` make the calls. They are timed on a ``device``, and ``run`` does so for all cases.
``results`` keeps the figures in a file, ``targets`` compares them with the library's targets, and
``picture`` and ``report`` show them. ``startup`` measures a process's time to its first gradient.
"""
