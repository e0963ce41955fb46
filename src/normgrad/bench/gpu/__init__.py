"""The part of ``normgrad bench --device cuda`` that differs from a run on a CPU.

``device`` alone calls CUDA. ``contenders`` makes the calls, on copies of the tensors; ``run`` goes
through the cases and says which were not measured, and why; ``added`` puts runs of parts together.
The suite, the timing, the file of the results, targets and reports are the CPU's.
"""
