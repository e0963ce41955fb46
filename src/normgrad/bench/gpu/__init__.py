"""The benchmark behind ``normgrad bench --device cuda``.

What can be decided without a GPU is decided by pure functions: ``suite`` says which cases there
are, ``rotation`` how many copies of their tensors are gone through, ``results`` what a file holds,
``figures`` what follows from it, ``targets`` what is to be reached; ``report`` shows it.
``contenders`` makes the calls, with ``compiled`` and ``installed`` those of torch.compile and of
other libraries; ``timing`` times them by turns, with a stopwatch that it is given, and ``run`` goes
through the cases. Only ``device`` calls CUDA.
"""
