"""Checked mode on many small programs: a line of the report on each wrong one, none on right ones.

Each program is a few lines of C after ``begin`` of programs/races.h. They are compiled as the cases
of one program, to save time. The wrong ones run in forks of it, since a process prints the first
race of each kind alone.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from .conftest import run
from .test_races import CHECKED, findings

PROGRAMS = Path(__file__).parent / "programs"

#: Words in the findings below, beside those of test_races.SHORT.
WORDS = {
    "SET": "aclrtMemsetAsync on a stream",
    "COPY": "aclrtMemcpyAsync on a stream",
    "COPY0": "aclrtMemcpyAsync on the default stream",
    "NORM0": "aclnnBatchNormBackward on the default stream",
    "ROWS": "aclrtMemcpy2dAsync on a stream",
    "RMS": "aclnnRmsNorm on a stream",
    "GATHER": "aclnnBatchNormGatherStatsWithCounts on a stream",
}
#: A case's name, its finding, and its code.
WRONG = """
read after no wait | NORM writes gradInput; 2. aclrtMemcpy reads it as src, EARLY
    launch(one); READ(data[2]);
output set at once | NORM writes gradInput; 2. aclrtMemset writes it as devPtr, EARLY
    launch(one); MUST(aclrtMemset(data[2], BYTES, 0, BYTES));
input copied over | NORM reads input; 2. aclrtMemcpy writes it as dst, EARLY
    launch(one); MUST(aclrtMemcpy(data[1], BYTES, values[0], BYTES, UP));
output freed | NORM writes gradInput; 2. aclrtFree frees it as devPtr, EARLY
    launch(one); MUST(aclrtFree(data[2])); data[2] = NULL;
input freed | NORM reads gradOut; 2. aclrtFree frees it as devPtr, EARLY
    launch(one); MUST(aclrtFree(data[0])); data[0] = NULL;
last element | NORM writes gradInput; 2. aclrtMemset writes it as devPtr, EARLY
    launch(one); MUST(aclrtMemset((float *)data[2] + COUNT - 1, 4, 0, 4));
second element | NORM reads gradOut; 2. aclrtMemset writes it as devPtr, EARLY
    launch(one); MUST(aclrtMemset((float *)data[0] + 1, 4, 0, 4));
copy on the device | NORM writes gradInput; 2. aclrtMemcpy reads it as src, EARLY
    launch(one); MUST(aclrtMemcpy(more, 24, data[2], 24, ACL_MEMCPY_DEVICE_TO_DEVICE));
rows read at once | NORM writes gradInput; 2. aclrtMemcpy2d reads it as src, EARLY
    launch(one);
    MUST(aclrtMemcpy2d(result, 16, data[2], 16, 16, 6, ACL_MEMCPY_DEVICE_TO_HOST));
rows written later | ROWS writes dst; 2. aclrtMemcpy reads it as src, EARLY
    MUST(aclrtMemcpy2dAsync(data[1], 16, values[0], 16, 16, 6, UP, one)); READ(data[1]);
copied to, and read | COPY writes dst; 2. aclrtMemcpy reads it as src, EARLY
    UPLOAD(data[1], values[1], one); READ(data[1]);
set, and read | SET writes devPtr; 2. aclrtMemcpy reads it as src, EARLY
    ZERO(data[1], one); READ(data[1]);
set, and freed | SET writes devPtr; 2. aclrtFree frees it as devPtr, EARLY
    ZERO(data[2], one); MUST(aclrtFree(data[2])); data[2] = NULL;
set on both | SET writes devPtr; 2. SET writes it as devPtr, UNORDERED
    ZERO(data[1], one); ZERO(data[1], two);
set on the other | SET writes devPtr; 2. NORM reads it as input, UNORDERED
    ZERO(data[1], one); launch(two);
read by one, set by the other | NORM reads gradOut; 2. SET writes it as devPtr, UNORDERED
    launch(one); ZERO(data[0], two);
downloaded by the other | NORM writes gradInput; 2. COPY reads it as src, UNORDERED
    launch(one); DOWNLOAD(result, data[2], two);
launched on both | NORM writes gradInput; 2. NORM writes it as gradInput, UNORDERED
    launch(one); launch(two);
waited for the other stream | NORM writes gradInput; 2. aclrtMemcpy reads it as src, EARLY
    launch(one); MUST(aclrtSynchronizeStream(two)); READ(data[2]);
waited before | NORM writes gradInput; 2. aclrtMemcpy reads it as src, EARLY
    MUST(aclrtSynchronizeStream(one)); launch(one); READ(data[2]);
waited for the device before | NORM writes gradInput; 2. aclrtMemcpy reads it as src, EARLY
    MUST(aclrtSynchronizeDevice()); launch(one); READ(data[2]);
waited for the default stream | NORM writes gradInput; 2. aclrtMemcpy reads it as src, EARLY
    launch(one); MUST(aclrtSynchronizeStream(NULL)); READ(data[2]);
asked about the other stream | NORM writes gradInput; 2. aclrtMemcpy reads it as src, EARLY
    aclrtStreamStatus status; launch(one); MUST(aclrtStreamQuery(two, &status)); READ(data[2]);
event before the work | NORM writes gradInput; 2. aclrtMemcpy reads it as src, EARLY
    MUST(aclrtRecordEvent(event, one)); launch(one); MUST(aclrtSynchronizeEvent(event));
    READ(data[2]);
event of the other stream | NORM writes gradInput; 2. aclrtMemcpy reads it as src, EARLY
    launch(one); MUST(aclrtRecordEvent(event, two)); MUST(aclrtSynchronizeEvent(event));
    READ(data[2]);
event asked once | NORM writes gradInput; 2. aclrtMemcpy reads it as src, EARLY
    aclrtEventRecordedStatus status; launch(one); MUST(aclrtRecordEvent(event, one));
    MUST(aclrtQueryEventStatus(event, &status)); READ(data[2]);
wait the wrong way round | NORM writes gradInput; 2. COPY reads it as src, UNORDERED
    launch(one); MUST(aclrtRecordEvent(event, two)); MUST(aclrtStreamWaitEvent(one, event));
    DOWNLOAD(result, data[2], two);
event without a wait | NORM writes gradInput; 2. COPY reads it as src, UNORDERED
    launch(one); MUST(aclrtRecordEvent(event, one)); DOWNLOAD(result, data[2], two);
event between two writes | SET writes devPtr; 2. COPY reads it as src, UNORDERED
    launch(one); MUST(aclrtRecordEvent(event, one)); ZERO(data[2], one);
    MUST(aclrtStreamWaitEvent(two, event)); DOWNLOAD(result, data[2], two);
waited for the first of a chain | COPY writes dst; 2. aclrtMemcpy reads it as src, EARLY
    launch(one); MUST(aclrtRecordEvent(event, one)); MUST(aclrtStreamWaitEvent(two, event));
    MUST(aclrtMemcpyAsync(data[1], BYTES, data[2], BYTES, ACL_MEMCPY_DEVICE_TO_DEVICE, two));
    MUST(aclrtSynchronizeStream(one)); READ(data[1]);
default stream, read | NORM0 writes gradInput; 2. aclrtMemcpy reads it as src, EARLY
    launch(NULL); READ(data[2]);
default stream and another | COPY0 writes dst; 2. NORM reads it as input, UNORDERED
    UPLOAD(data[1], values[1], NULL); launch(one);
host block freed | COPY writes dst; 2. aclrtFreeHost frees it as hostPtr, EARLY
    void *host; MUST(aclrtMallocHost(&host, BYTES)); DOWNLOAD(host, data[1], one);
    MUST(aclrtFreeHost(host));
host block changed | reads src; 2. the program changed that memory before it was done
    float *host; MUST(aclrtMallocHost((void **)&host, BYTES)); memcpy(host, values[1], BYTES);
    UPLOAD(data[1], host, one); host[5] = 99; MUST(aclrtSynchronizeStream(one));
    MUST(aclrtFreeHost(host));
host memory copied over | COPY reads src; 2. aclrtMemcpy writes it as dst, EARLY
    memcpy(result, values[1], BYTES); UPLOAD(data[1], result, one); READ(data[0]);
host memory written by both | COPY writes dst; 2. COPY writes it as dst, UNORDERED
    DOWNLOAD(result, data[0], one); DOWNLOAD(result, data[1], two);
host memory between streams | COPY writes dst; 2. COPY reads it as src, UNORDERED
    DOWNLOAD(result, data[0], one); UPLOAD(data[1], result, two);
stream ended with a copy | COPY; 2. aclrtDestroyStream ends its stream EARLY
    UPLOAD(data[1], values[1], one); MUST(aclrtDestroyStream(one)); one = NULL;
stream ended with a set | SET; 2. aclrtDestroyStream ends its stream EARLY
    ZERO(data[1], one); MUST(aclrtDestroyStream(one)); one = NULL;
executor destroyed | NORM; 2. aclDestroyAclOpExecutor ends its executor EARLY
    MUST(aclDestroyAclOpExecutor(launch_again(one)));
time of two streams | NORM; 2. aclrtEventElapsedTime asks for the time after it EARLY
    aclrtEvent after; float time; MUST(aclrtCreateEvent(&after));
    MUST(aclrtRecordEvent(event, one)); launch(two); MUST(aclrtRecordEvent(after, two));
    MUST(aclrtSynchronizeEvent(event)); MUST(aclrtEventElapsedTime(&time, event, after));
    MUST(aclrtDestroyEvent(after));
RMS norm read | RMS writes yOut; 2. aclrtMemcpy reads it as src, EARLY
    rms_norm(one); READ(data[2]);
RMS norm's statistics set | RMS writes rstdOut; 2. aclrtMemset writes it as devPtr, EARLY
    rms_norm(one); MUST(aclrtMemset(more, 24, 0, 24));
RMS norm's weight set | RMS reads gamma; 2. SET writes it as devPtr, UNORDERED
    rms_norm(one); ZERO(data[1], two);
running statistics read | GATHER writes runningMean; 2. aclrtMemcpy reads it as src, EARLY
    gather(one); READ(more);
"""

RIGHT = """
waited for the stream
    launch(one); MUST(aclrtSynchronizeStream(one)); READ(data[2]);
waited for the stream with a limit
    launch(one); MUST(aclrtSynchronizeStreamWithTimeout(one, 1000)); READ(data[2]);
waited for the device
    launch(one); launch_again(one); MUST(aclrtSynchronizeDevice()); READ(data[2]);
    MUST(aclDestroyAclOpExecutor(again));
waited for an event
    launch(one); MUST(aclrtRecordEvent(event, one)); MUST(aclrtSynchronizeEvent(event));
    READ(data[2]);
waited for the default stream
    launch(NULL); MUST(aclrtSynchronizeStream(NULL)); READ(data[2]);
in order on one stream
    UPLOAD(data[1], values[1], one); launch(one); ZERO(data[0], one);
    DOWNLOAD(result, data[2], one); MUST(aclrtSynchronizeStream(one));
one stream after the other
    launch(one); MUST(aclrtRecordEvent(event, one)); MUST(aclrtStreamWaitEvent(two, event));
    ZERO(data[2], two); MUST(aclrtSynchronizeStream(two)); READ(data[2]);
both read
    rms_norm(one); MUST(aclrtMemcpyAsync(result, BYTES, data[0], BYTES, DOWN, two));
    MUST(aclrtSynchronizeDevice());
halves on two streams
    MUST(aclrtMemsetAsync(data[1], BYTES / 2, 0, BYTES / 2, one));
    MUST(aclrtMemsetAsync((char *)data[1] + BYTES / 2, BYTES / 2, 0, BYTES / 2, two));
    MUST(aclrtSynchronizeDevice());
executor destroyed after the work
    launch_again(one); MUST(aclrtSynchronizeStream(one)); MUST(aclDestroyAclOpExecutor(again));
host memory used again after the work
    memcpy(result, values[1], BYTES); UPLOAD(data[1], result, one);
    MUST(aclrtSynchronizeStream(one)); memset(result, 0, BYTES);
running statistics, then read
    gather(one); MUST(aclrtSynchronizeStream(one)); READ(more);
"""

SHARED = r"""
#define _GNU_SOURCE
#include <sys/wait.h>
#include <unistd.h>

#include "%(folder)s/races.h"
#include "aclnnop/aclnn_batch_norm_gather_stats_with_counts.h"
#include "aclnnop/aclnn_rms_norm.h"

#define UP ACL_MEMCPY_HOST_TO_DEVICE
#define DOWN ACL_MEMCPY_DEVICE_TO_HOST
#define READ(from) MUST(aclrtMemcpy(result, sizeof result, from, more == (from) ? 12 : BYTES, DOWN))
#define ZERO(at, stream) MUST(aclrtMemsetAsync(at, BYTES, 0, BYTES, stream))
#define UPLOAD(to, from, stream) MUST(aclrtMemcpyAsync(to, BYTES, from, BYTES, UP, stream))
#define DOWNLOAD(to, from, stream) MUST(aclrtMemcpyAsync(to, BYTES, from, BYTES, DOWN, stream))

static void *more; // rstdOut, or the running mean
static aclOpExecutor *again;

static aclTensor *view(void *memory, uint64_t axes, const int64_t *shape)
{
    return aclCreateTensor(shape, axes, ACL_FLOAT, NULL, 0, ACL_FORMAT_ND, shape, axes, memory);
}

static void set_up(uint64_t needed)
{
    if (needed && !workspace)
        MUST(aclrtMalloc(&workspace, needed, ACL_MEM_MALLOC_HUGE_FIRST));
}

__attribute__((unused)) static aclOpExecutor *launch_again(aclrtStream stream)
{
    const bool first[] = {true, false, false};
    aclBoolArray *mask = aclCreateBoolArray(first, 3);
    MUST(aclnnBatchNormBackwardGetWorkspaceSize(tensors[0], tensors[1], NULL, NULL, NULL, NULL,
                                                NULL, true, 1e-5, mask, tensors[2], NULL, NULL,
                                                &size, &again));
    MUST(aclSetAclOpExecutorRepeatable(again));
    set_up(size);
    MUST(aclnnBatchNormBackward(workspace, size, again, stream));
    MUST(aclDestroyBoolArray(mask));
    return again;
}

static void rms_norm(aclrtStream stream)
{
    aclTensor *gamma = view(data[1], 1, (const int64_t[]){4});
    aclTensor *rstd = view(more, 3, (const int64_t[]){2, 3, 1});
    aclOpExecutor *executor;
    MUST(aclnnRmsNormGetWorkspaceSize(tensors[0], gamma, 1e-6, tensors[2], rstd, &size, &executor));
    set_up(size);
    MUST(aclnnRmsNorm(workspace, size, executor, stream));
    MUST(aclDestroyTensor(gamma));
    MUST(aclDestroyTensor(rstd));
}

static void gather(aclrtStream stream)
{
    const int64_t ranks[] = {2, 3}, *channels = ranks + 1;
    float *at = data[1], *out = data[2];
    aclTensor *made[] = {
        view(at, 2, ranks),      view(at + 8, 2, ranks), view(more, 1, channels),
        view(at + 16, 1, ranks), view(out, 1, channels), view(out + 8, 1, channels),
    };
    aclOpExecutor *executor;
    MUST(aclnnBatchNormGatherStatsWithCountsGetWorkspaceSize(
        tensors[0], made[0], made[1], made[2], NULL, 0.1, 1e-5, made[3], made[4], made[5], &size,
        &executor));
    set_up(size);
    MUST(aclnnBatchNormGatherStatsWithCounts(workspace, size, executor, stream));
    for (int i = 0; i < 6; ++i)
        MUST(aclDestroyTensor(made[i]));
}

__attribute__((unused)) static void must_end_well(void)
{
    int status;
    if (wait(&status) < 0 || status != 0)
        exit(3);
}

int main(void)
{
    start();
%(cases)s
    MUST(aclrtResetDevice(0));
    MUST(aclFinalize());
    return 0;
}
"""


def programs(text: str) -> dict[str, tuple[str, str]]:
    """The finding and the code of each case of a table, by its name."""
    found: dict[str, tuple[str, str]] = {}
    name = finding = ""
    for line in text.strip().splitlines():
        if line.startswith(" "):
            found[name] = (finding, found[name][1] + line.strip() + "\n")
        else:
            name, _, finding = line.partition(" | ")
            found[name] = finding, ""
    return found


#: A case, and one that runs in a fork.
CASE = """
begin("%s");
MUST(aclrtMalloc(&more, 24, ACL_MEM_MALLOC_HUGE_FIRST));
{
%s}
MUST(aclrtSynchronizeDevice());
MUST(aclrtFree(more));
clean_up();
"""
FORKED = "if (fork() == 0) {\n    MUST(aclrtSetDevice(0));%s    _exit(0);\n}\nmust_end_well();\n"


def report(libraries, folder, cases, frame):
    """The report of all cases: the lines, and the findings of each case."""
    code = "".join(frame.replace("%s", CASE % (name, each)) for name, (_, each) in cases.items())
    source = folder / "host.c"
    shared = {"folder": PROGRAMS, "cases": textwrap.indent(code, "    ")}
    source.write_text(SHARED % shared, "utf-8")
    done = run(libraries.compile(source, folder / "host"), env=CHECKED)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    return done.stderr.splitlines(), findings(done.stderr)


def test_wrong_programs(libraries, tmp_path):
    cases = programs(WRONG)
    _, found = report(libraries, tmp_path, cases, FORKED)
    assert list(found) == list(cases)
    for name, (finding, _) in cases.items():
        (line,) = found[name] or ["nothing"]
        expected = re.sub(r"\w+", lambda word: WORDS.get(word[0], word[0]), finding)
        assert expected in line, name


def test_right_programs(libraries, tmp_path):
    cases = programs(RIGHT)
    lines, _ = report(libraries, tmp_path, cases, "%s")
    assert lines == [f"case: {name}" for name in cases]


@pytest.mark.parametrize(("table", "least"), [(WRONG, 36), (RIGHT, 12)])
def test_none_got_lost(table, least):
    assert len(programs(table)) >= least
    assert all(code for _, code in programs(table).values())
