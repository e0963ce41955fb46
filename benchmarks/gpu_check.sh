#!/usr/bin/env bash
# What wants an NVIDIA GPU, within ten minutes: the tests, three tools of compute-sanitizer on some of
# them, rows beside torch.compile and Liger, and a part of the benchmark.
#
#     benchmarks/gpu_check.sh FOLDER [OPTION ...]
#
# Logs and the benchmark's CSV go to FOLDER; options are the benchmark's, in place of those below.
# Every step has a time limit. $PYTHON is the interpreter, else python. What is missing or left out is
# said, and what does not need it is run all the same. Status 0: everything ran and passed; 1:
# something failed; 2: something was missing, or FOLDER.
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
declare -A jobs_of=()

lacks() { # what is missing, and what is not run for it
    echo "missing    $1"
    missing=1
}

step() { # a name, a limit in seconds, and a command; its output is shown and kept
    local name=$1 limit=$2
    shift 2
    echo "== $name, at most $limit s: $*"
    timeout -k 5 "$limit" "$@" 2>&1 | tee "$folder/$name.log"
    ended "$name" "${PIPESTATUS[0]}"
}

ended() { # a name, and a status
    case $2 in
        0) echo "passed     $1" ;;
        124 | 137) echo "FAILED     $1: it ran past its limit: $folder/$1.log"; failed=1 ;;
        *) echo "FAILED     $1: $folder/$1.log"; failed=1 ;;
    esac
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
import sys
import torch
sys.path.insert(0, 'benchmarks')
from measuring.device import missing
print(missing() or '')") || {
    lacks "a normgrad and a PyTorch that can be imported: nothing was run"
    finish
}
if [ -n "$reason" ]; then
    lacks "a CUDA device: $reason: nothing was run"
    finish
fi
command -v nvidia-smi > /dev/null && nvidia-smi | tee "$folder/nvidia-smi.log"

# Kernels that benchmarks/gpu_cache.py compiled elsewhere. Where the folder has no name, torch.compile
# makes Triton use one of its own.

export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-${HOME:-/tmp}/.triton/cache}
if [ ! -f build/gpu-cache.tar.xz ] || ! "$python" benchmarks/gpu_cache.py unpack; then
    echo "left out   kernels compiled before (build/gpu-cache.tar.xz, by benchmarks/gpu_cache.py)"
fi

# The tests.

if [ ! -d tests/gpu ]; then
    lacks "the folder tests/gpu: no tests were run"
elif ! has pytest; then
    lacks "the package pytest: no tests were run (requirements/test.txt)"
else
    parallel=()
    if has xdist; then
        parallel=(-n "${WORKERS:-14}" --dist worksteal)
    else
        echo "left out   tests in parallel (the package pytest-xdist); they may run past their limit"
    fi
    step tests 150 "$python" -m pytest -q "${parallel[@]}" tests/gpu
    if command -v compute-sanitizer > /dev/null; then
        # Behind PyTorch's cache of memory the tools see one allocation.
        export PYTORCH_NO_CUDA_MEMORY_CACHING=1
        for tool in memcheck racecheck initcheck; do
            timeout -k 5 90 compute-sanitizer --tool "$tool" --error-exitcode 9 \
                "$python" -m pytest -q tests/gpu/test_passes.py \
                -k "sanitizer and (float32 or bfloat16)" > "$folder/$tool.log" 2>&1 &
            jobs_of[$!]=$tool
        done
        for job in "${!jobs_of[@]}"; do
            wait "$job"
            ended "${jobs_of[$job]}" $?
        done
        unset PYTORCH_NO_CUDA_MEMORY_CACHING
        echo "left out   sanitizers on float16 and float64"
    else
        lacks "compute-sanitizer, of the CUDA toolkit: no memcheck, no racecheck, no initcheck"
    fi
fi

# Rows, and layers' time on the host, beside other libraries.

step peers 150 "$python" benchmarks/gpu_peers.py
has liger_kernel || echo "left out   Liger's kernels (the package liger-kernel)"

# The benchmark.

bench=1
for module in typer rich matplotlib; do
    has "$module" || {
        lacks "the package $module: no benchmark was run (pip install '.[cli]')"
        bench=0
    }
done
if [ $bench -eq 1 ]; then
    if [ $# -eq 0 ]; then
        set -- --no-compile --repeat 9 --filter '^(train|forward|stats)/256x(64x56x56|1024x14x14)/(b?float(16|32))/c(o|h)|^(forward-)?group-norm/.*-32/float32/c(o|h)|^layer-group.*t32'
        echo "left out   torch.compile, and the benchmark's other cases: give its options to choose"
    fi
    step bench 120 "$python" benchmarks/measure.py run --device cuda --out "$folder" "$@"
fi
finish
