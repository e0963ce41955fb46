"""The benchmark behind ``normgrad bench``: the same results from normgrad and from PyTorch.

``suite`` says which cases there are, ``data`` makes their tensors, ``contenders``,
``compositions`` and ``steps`` what is timed on them, ``timing`` times it on a ``device``, and
``run`` goes through them. ``results`` keeps the figures in a file, ``targets`` holds them against
what the library wants to reach, ``picture`` and ``report`` show them. ``startup`` measures what a
process pays before its first gradient.
"""
