"""The benchmark behind ``normgrad bench``: normgrad and PyTorch compute the same results.

``suite`` defines the cases, ``data`` makes their tensors, and ``contenders``, ``compositions`` and
``steps`` make the calls. ``timing`` times them on a ``device``, and ``run`` does so for all cases.
``results`` keeps the figures in a file, ``targets`` compares them with the library's targets, and
``picture`` and ``report`` show them. ``startup`` measures a process's time to its first gradient.
"""
