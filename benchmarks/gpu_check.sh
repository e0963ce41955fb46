#!/usr/bin/env bash
# All that wants an NVIDIA GPU, in order: the tests, two tools of compute-sanitizer on some of them,
# and the benchmark.
#
#     benchmarks/gpu_check.sh FOLDER [OPTION ...]
#
# Logs and the benchmark's CSV go to FOLDER; options are the benchmark's, such as --quick. $PYTHON is
# the interpreter, else python. What is missing is said, and what does not need it is run all the
# same. Status 0: everything ran and passed; 1: something failed; 2: something was missing, or FOLDER.
set -u

if [ $# -lt 1 ] || [ "${1#-}" != "$1" ]; then
    echo "gpu_check: FOLDER: missing; allowed: benchmarks/gpu_check.sh FOLDER [OPTION ...]" >&2
    exit 2
fi
case $1 in
    /*) folder=$1 ;;
    *) folder=$PWD/$1 ;;
esac
shift
python=${PYTHON:-python}
cd "$(dirname "$0")/.." || exit 2
mkdir -p "$folder" || exit 2
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}"

missing=0
failed=0

lacks() { # what is missing, and what is not run for it
    echo "missing    $1"
    missing=1
}

step() { # a name, and a command; its output is shown and kept
    local name=$1
    shift
    echo "== $name: $*"
    if "$@" 2>&1 | tee "$folder/$name.log"; [ "${PIPESTATUS[0]}" -eq 0 ]; then
        echo "passed     $name"
    else
        echo "FAILED     $name: $folder/$name.log"
        failed=1
    fi
}

finish() {
    if [ $failed -ne 0 ]; then exit 1; fi
    if [ $missing -ne 0 ]; then exit 2; fi
    exit 0
}

has() { # a module of Python's
    "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$1') is None)"
}

# What everything needs.

if ! command -v "$python" > /dev/null; then
    lacks "$python: nothing was run; set PYTHON to an interpreter with PyTorch for CUDA"
    finish
fi
for module in torch triton numpy numba; do
    has "$module" || lacks "the package $module: nothing was run"
done
[ $missing -eq 0 ] || finish
reason=$("$python" -c "
import torch
from normgrad.bench.device import missing
print(missing() or '')") || {
    lacks "a normgrad and a PyTorch that can be imported: nothing was run"
    finish
}
if [ -n "$reason" ]; then
    lacks "a CUDA device: $reason: nothing was run"
    finish
fi
command -v nvidia-smi > /dev/null && nvidia-smi | tee "$folder/nvidia-smi.log"

# The tests.

if [ ! -d tests/gpu ]; then
    lacks "the folder tests/gpu: no tests were run"
elif ! has pytest; then
    lacks "the package pytest: no tests were run (requirements/test.txt)"
else
    step tests "$python" -m pytest -q tests/gpu
    if command -v compute-sanitizer > /dev/null; then
        for tool in memcheck racecheck; do
            step "$tool" compute-sanitizer --tool "$tool" --error-exitcode 1 \
                "$python" -m pytest -q tests/gpu -k sanitizer
        done
    else
        lacks "compute-sanitizer, of the CUDA toolkit: no memcheck, no racecheck"
    fi
fi

# The benchmark.

bench=1
for module in typer rich matplotlib; do
    has "$module" || {
        lacks "the package $module: no benchmark was run (pip install '.[cli]')"
        bench=0
    }
done
if [ $bench -eq 1 ]; then
    step bench "$python" -m normgrad.cli bench --device cuda --out "$folder" "$@"
fi
finish
