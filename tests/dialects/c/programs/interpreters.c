// In a process that runs Python by itself: calls by a sub-interpreter, after the end of Python, and
// after a new start. Each is a result or a status.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "once.h"

static void say(const char *when, int status)
{
    printf("%s: %d %s\n", when, status, status ? aclGetRecentErrMsg() : "");
}

int main(int argc, char **argv)
{
    float result[24];
    int is_early = argc > 1 && argv[1][0] == 'e'; // the sub-interpreter makes the first call
    setvbuf(stdout, NULL, _IOLBF, 0);
    Py_Initialize();
    PyThreadState *mine = PyThreadState_Get();
    if (!is_early)
        say("main", aclInit(NULL) || compute_once(result));
    PyThreadState *other = Py_NewInterpreter();
    say("sub-interpreter", is_early ? aclInit(NULL) : compute_once(result));
    Py_EndInterpreter(other);
    PyThreadState_Swap(mine);
    if (is_early)
        say("main", aclInit(NULL));
    say("main again", compute_once(result));
    say("end of Python", Py_FinalizeEx());
    say("after it", compute_once(result));
    void *memory;
    say("memory", aclrtMalloc(&memory, 8, ACL_MEM_MALLOC_HUGE_FIRST));
    Py_Initialize();
    say("a new Python", compute_once(result));
    Py_Finalize();
    return 0;
}
