// This library starts Python for the C libraries, once in a process, unless Python already runs.
//
// libpython is not linked to, but opened at the first call. So a process that already runs Python,
// from an executable or a library of its own, uses that Python; and if Python is missing, a call
// reports it, rather than the loader. baked.h holds the paths and the version at build time.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ctype.h>
#include <dlfcn.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "baked.h"
#include "boot.h"

enum { EMPTY, FILLED, FAILED };
enum { MESSAGE_SIZE = 4096 }; // the bytes of a text, including the zero at its end

// The bytes of stack that a call may need. Importing, compiling and computing took 70 KiB, and 124
// with Python 3.10, in which Python's own calls use the C stack too.
enum { STACK = (PY_VERSION_HEX < 0x030B0000 ? 160 : 96) << 10 };

// PyEval_RestoreThread comes first, so that it is found even if another function is missing: boot
// calls it after a failure too.
#define FUNCTIONS(USE)                                                                             \
    USE(PyEval_RestoreThread)                                                                      \
    USE(Py_IsInitialized)                                                                          \
    USE(Py_GetVersion)                                                                             \
    USE(PyPreConfig_InitIsolatedConfig)                                                            \
    USE(Py_PreInitialize)                                                                          \
    USE(PyConfig_InitIsolatedConfig)                                                               \
    USE(PyConfig_SetBytesString)                                                                   \
    USE(PyConfig_Clear)                                                                            \
    USE(Py_DecodeLocale)                                                                           \
    USE(PyWideStringList_Append)                                                                   \
    USE(PyMem_RawFree)                                                                             \
    USE(Py_InitializeFromConfig)                                                                   \
    USE(PyStatus_Exception)                                                                        \
    USE(PyGILState_Ensure)                                                                         \
    USE(PyGILState_Release)                                                                        \
    USE(PyGILState_Check)                                                                          \
    USE(PyGILState_GetThisThreadState)                                                             \
    USE(PyEval_SaveThread)                                                                         \
    USE(PyOS_BeforeFork)                                                                           \
    USE(PyOS_AfterFork_Parent)                                                                     \
    USE(PyOS_AfterFork_Child)                                                                      \
    USE(Py_BuildValue)                                                                             \
    USE(PyEval_GetBuiltins)                                                                        \
    USE(PyRun_StringFlags)                                                                         \
    USE(PyDict_GetItemString)                                                                      \
    USE(PyUnicode_AsUTF8)                                                                          \
    USE(PyErr_Clear)                                                                               \
    USE(PyErr_CheckSignals)                                                                        \
    USE(PyErr_SetInterrupt)                                                                        \
    USE(Py_DecRef)

static struct {
#define DECLARE(name) __typeof__(&name) name;
    FUNCTIONS(DECLARE)
} py;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int booting; // this thread is in boot, and holds the lock
static int found;            // py is filled
static int embedded;         // this library started Python
static const char *broken;   // why Python cannot be started; there is no second attempt
static char problem[1024];   // why boot failed; empty if it did not
static int interrupted;      // a KeyboardInterrupt occurred in a callback (guarded by the GIL)
static int ending;           // if not 0, the status with which the process shall end; Python sets it
static struct {
    void (*last_words)(void); // called when the program exits
    void (*before_fork)(void), (*after_fork)(void); // called with the GIL
} hooks;                     // Python sets them if this library started it

// Store a problem, and print it to stderr if it is not the last one.
static int fail(const char *format, ...)
{
    char text[sizeof problem];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (strcmp(text, problem)) {
        memcpy(problem, text, sizeof problem);
        fprintf(stderr, "normgrad: %s\n", problem);
    }
    return 0;
}

// Find Python's functions in this process, or else in the library that baked.h names.
static int find_python(void)
{
    if (!dlsym(RTLD_DEFAULT, "Py_IsInitialized")) {
        // The symbols must be global, since extension modules need them.
        if (!dlopen(BAKED_LIBPYTHON, RTLD_NOW | RTLD_GLOBAL))
            return fail("cannot load the Python that the C libraries were built for (%s); build "
                        "them again with `normgrad capi build`",
                        dlerror());
    }
#define FIND(name)                                                                                 \
    if (!(py.name = (__typeof__(py.name))dlsym(RTLD_DEFAULT, #name)))                              \
        return fail("no " #name " in the Python that runs; allowed: Python " BAKED_VERSION);
    FUNCTIONS(FIND)
    const char *version = py.Py_GetVersion();
    size_t length = strlen(BAKED_VERSION);
    if (strncmp(version, BAKED_VERSION, length) || isdigit((unsigned char)version[length]))
        return fail("the process runs Python %.20s; allowed: " BAKED_VERSION
                    ", which the C libraries were built for",
                    version);
    found = 1;
    return 1;
}

// The buffer of this thread's last error.
static char *message(void)
{
    static __thread char text[MESSAGE_SIZE];
    return text;
}

// The state of each thread, as in OfThread of calls.py. Python's own thread-local storage would be
// lost between the calls of a thread that C made.
static __thread struct {
    void *caller;            // the address in the program that the call returns to
    uint64_t life, context, device; // used by Python only
} of_thread;

static void *thread(void)
{
    return &of_thread;
}

// This runs after the program's own static destructors, which may still free memory.
__attribute__((destructor)) static void end(void)
{
    if (hooks.last_words)
        hooks.last_words();
    if (ending) {
        fflush(NULL);
        _exit(ending);
    }
}

// Start Python in isolated mode: no environment variable, user folder or working directory changes
// what is imported, and the program keeps its signal handlers.
static int start_python(void)
{
    PyPreConfig before;
    py.PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    if (py.PyStatus_Exception(py.Py_PreInitialize(&before))) {
        broken = "Python cannot be prepared";
        return fail("the C libraries cannot start: %s", broken);
    }

    PyConfig config;
    py.PyConfig_InitIsolatedConfig(&config);
    config.site_import = 0; // the search path is complete without it
    config.pathconfig_warnings = 0;
    config.install_signal_handlers = 0;
    config.module_search_paths_set = 1;
    PyStatus status = py.PyConfig_SetBytesString(&config, &config.home, BAKED_HOME);
    if (!py.PyStatus_Exception(status))
        status = py.PyConfig_SetBytesString(&config, &config.executable, BAKED_EXECUTABLE);
    static const char *const paths[] = {BAKED_PATHS};
    for (size_t i = 0; i < sizeof paths / sizeof *paths && !py.PyStatus_Exception(status); ++i) {
        wchar_t *path = py.Py_DecodeLocale(paths[i], NULL);
        if (path)
            status = py.PyWideStringList_Append(&config.module_search_paths, path);
        py.PyMem_RawFree(path);
    }
    if (!py.PyStatus_Exception(status))
        status = py.Py_InitializeFromConfig(&config);
    py.PyConfig_Clear(&config);
    if (py.PyStatus_Exception(status)) {
        broken = status.err_msg ? status.err_msg : "Python does not";
        return fail("the C libraries cannot start: %s", broken);
    }
    embedded = 1;
    return 1;
}

// In a Python that this library started, OpenBLAS gets a single thread, since nothing multiplies
// matrices. In a Python that ran before, packages may be elsewhere, so the folders of baked.h come
// last; and interrupts wait, since an import must not be left incomplete.
static const char SCRIPT[] =
    "problem, handler, changed = '', None, []\n"
    "try:\n"
    "    import os, signal, sys, threading\n"
    "    if embedded:\n"
    "        if 'OPENBLAS_NUM_THREADS' not in os.environ:\n"
    "            os.environ['OPENBLAS_NUM_THREADS'] = '1'\n"
    "            changed.append('OPENBLAS_NUM_THREADS')\n"
    "    elif threading.current_thread() is threading.main_thread():\n"
    "        import ctypes\n"
    "        interrupt = ctypes.c_int.from_address(interrupted)\n"
    "        handler = signal.getsignal(signal.SIGINT)\n"
    "        if handler is not None:\n"
    "            signal.signal(signal.SIGINT, lambda *_: setattr(interrupt, 'value', 1))\n"
    "    try:\n"
    "        import normgrad.capi.runtime as runtime\n"
    "    except ModuleNotFoundError:\n"
    "        sys.path += [path for path in " BAKED_SYS_PATH " if path not in sys.path]\n"
    "        import normgrad.capi.runtime as runtime\n"
    "    runtime.fill(name, digest, table, message, message_size, thread, interrupted, ending,\n"
    "                 embedded and hooks)\n"
    "except BaseException as error:\n"
    "    problem = f'{type(error).__name__}: {error}'\n"
    "finally:\n"
    "    for name in changed:\n"
    "        del os.environ[name]\n"
    "    if handler is not None:\n"
    "        signal.signal(signal.SIGINT, handler)\n";

// Let Python write the addresses of its functions into the library's table; needs the GIL.
static int fill_table(struct normgrad_library *library)
{
    PyObject *names = py.Py_BuildValue(
        "{s:O,s:s,s:s,s:n,s:n,s:i,s:n,s:n,s:n,s:n,s:i}", "__builtins__", py.PyEval_GetBuiltins(), "name",
        library->name, "digest", library->digest, "table", (Py_ssize_t)library->table, "message",
        (Py_ssize_t)message, "message_size", MESSAGE_SIZE, "thread", (Py_ssize_t)thread,
        "interrupted", (Py_ssize_t)&interrupted, "ending", (Py_ssize_t)&ending, "hooks",
        (Py_ssize_t)&hooks, "embedded", embedded);
    PyObject *done =
        names ? py.PyRun_StringFlags(SCRIPT, Py_file_input, names, names, NULL) : NULL;
    PyObject *text = done ? py.PyDict_GetItemString(names, "problem") : NULL;
    const char *reason = text ? py.PyUnicode_AsUTF8(text) : NULL;
    int filled = reason && !*reason;
    if (!filled)
        fail("the C libraries cannot start: %s", reason ? reason : "unknown cause");
    py.PyErr_Clear();
    py.Py_DecRef(done);
    py.Py_DecRef(names);
    return filled;
}

static int start(struct normgrad_library *library)
{
    if (broken)
        return fail("the C libraries cannot start: %s", broken);
    if (!found && !find_python())
        return 0;
    if (!py.Py_IsInitialized()) {
        if (embedded)
            return fail("the Python that served this process has ended");
        if (!start_python())
            return 0;
        // Python's signal module installs a handler for SIGINT, in spite of the configuration, so
        // the old handler is restored.
        struct sigaction interrupt;
        sigaction(SIGINT, NULL, &interrupt);
        int filled = fill_table(library);
        sigaction(SIGINT, &interrupt, NULL);
        py.PyEval_SaveThread();
        return filled;
    }
    PyGILState_STATE state = py.PyGILState_Ensure();
    int filled = fill_table(library);
    py.PyGILState_Release(state);
    return filled;
}

// Whether this thread holds the GIL, if there is a Python in the process.
static int holds_gil(void)
{
    int (*initialized)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "Py_IsInitialized");
    int (*check)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "PyGILState_Check");
    return initialized && check && initialized() && check();
}

static int boot(struct normgrad_library *library)
{
    if (booting)
        return 0;
    // A thread must not hold the GIL while it waits for the lock, since the lock's owner may wait
    // for the GIL.
    PyThreadState *saved = NULL;
    if (holds_gil()) {
        __typeof__(&PyEval_SaveThread) save =
            (__typeof__(&PyEval_SaveThread))dlsym(RTLD_DEFAULT, "PyEval_SaveThread");
        saved = save();
    }

    pthread_mutex_lock(&lock);
    booting = 1;
    if (library->state == EMPTY)
        __atomic_store_n(&library->state, start(library) ? FILLED : FAILED, __ATOMIC_RELEASE);
    booting = 0;
    pthread_mutex_unlock(&lock);
    if (saved)
        py.PyEval_RestoreThread(saved);
    return library->state == FILLED;
}

// A call holds the GIL from normgrad_capi_enter to normgrad_capi_leave. At the first call of a
// thread that C made, Python makes a thread state before it takes the GIL. A fork in the middle of
// that would leave the child with a locked lock of Python's. So a fork waits for new_states.

static pthread_mutex_t new_states = PTHREAD_MUTEX_INITIALIZER;
static __thread PyGILState_STATE gil;

static void take_gil(void)
{
    int is_new = embedded && !py.PyGILState_GetThisThreadState();
    if (is_new)
        pthread_mutex_lock(&new_states);
    gil = py.PyGILState_Ensure();
    if (is_new)
        pthread_mutex_unlock(&new_states);
}

// The bytes of stack that this thread has left; SIZE_MAX if the current stack is not the thread's
// own, such as a coroutine's.
static size_t stack_left(void)
{
    static __thread int known;
    static __thread char *low, *high;
    if (!known) {
        pthread_attr_t attributes;
        void *start;
        size_t size;
        if (!pthread_getattr_np(pthread_self(), &attributes)) {
            if (!pthread_attr_getstack(&attributes, &start, &size)) {
                low = start;
                high = low + size;
            }
            pthread_attr_destroy(&attributes);
        }
        known = 1;
    }
    char *here = __builtin_frame_address(0);
    return here < low || here >= high ? SIZE_MAX : (size_t)(here - low);
}

// Store the message on a call from a thread with too little stack as its last error, and print it
// once to stderr, without stdio, which needs some KiB of stack itself.
static void refuse_stack(const char *function, size_t left)
{
    static int reported;
    char *text = message();
    int length = snprintf(text, MESSAGE_SIZE,
                          "%s: %zu bytes of the thread's stack are left; allowed: %d or more",
                          function, left, STACK);
    if (__atomic_exchange_n(&reported, 1, __ATOMIC_RELAXED))
        return;
    struct iovec line[] = {{(void *)"normgrad: ", 10}, {text, (size_t)length}, {(void *)"\n", 1}};
    if (writev(STDERR_FILENO, line, 3) < 0)
        return; // a failure to print is ignored
}

void normgrad_capi_absent(const char *function, const char *there, int *reported)
{
    char *text = message();
    snprintf(text, MESSAGE_SIZE, "normgrad has no %s; it has: %s", function, there);
    if (!__atomic_exchange_n(reported, 1, __ATOMIC_RELAXED))
        fprintf(stderr, "%s\n", text);
    const char *report = getenv("NORMGRAD_CAPI_REPORT");
    if (report && !strcmp(report, "error"))
        ending = 1;
}

// The program's floating-point environment during a call. A program may change the rounding mode,
// or flush subnormal numbers to zero (gcc's -Ofast does that to the whole program). Results must
// not depend on it, and NumPy must not trap.
static __thread fenv_t arithmetic;

static int can_call(struct normgrad_library *library)
{
    int state = __atomic_load_n(&library->state, __ATOMIC_ACQUIRE);
    if (state != FILLED && (state != EMPTY || !boot(library)))
        return 0;
    if (!py.Py_IsInitialized())
        return 0; // Python has ended
    take_gil();
    // In a Python that ran before, a signal that Python has not handled yet would raise an
    // exception at the beginning of the callback, outside its handlers, and be lost. So the call
    // fails, and the signal is raised again after it.
    if (embedded || py.PyErr_CheckSignals() == 0)
        return 1;
    py.PyErr_Clear();
    py.PyErr_SetInterrupt();
    py.PyGILState_Release(gil);
    return 0;
}

int normgrad_capi_enter(struct normgrad_library *library, const char *function, void *from)
{
    of_thread.caller = from;
    size_t left = stack_left();
    if (left < STACK) {
        refuse_stack(function, left);
        return 0;
    }
    fegetenv(&arithmetic);
    fesetenv(FE_DFL_ENV);
    int can = can_call(library);
    if (!can)
        fesetenv(&arithmetic);
    return can;
}

void normgrad_capi_leave(void)
{
    if (interrupted) {
        interrupted = 0;
        py.PyErr_SetInterrupt();
    }
    py.PyGILState_Release(gil);
    fesetenv(&arithmetic);
}

const char *normgrad_capi_message(void)
{
    return *message() ? message() : problem;
}

// If this library started Python, a fork waits until a boot, an import or a compilation ends, and
// for the GIL, and calls Python's functions for forks. (Python's own forks hold the GIL, and have
// done all that already.) If Python ran before, a boot needs the GIL. If the forking thread holds
// it, the fork does not wait for the boot.

static __thread int forking;
static PyGILState_STATE fork_state;

enum { LOCKED = 1, WITH_GIL = 2, AMID_BOOT = 4 };

static void before_fork(void)
{
    forking = 0;
    int holding = holds_gil();
    if (booting || (embedded && holding))
        return;
    if (!holding)
        pthread_mutex_lock(&lock);
    else if (pthread_mutex_trylock(&lock)) {
        forking = AMID_BOOT;
        return;
    }
    pthread_mutex_lock(&new_states);
    forking = LOCKED;
    if (embedded && py.Py_IsInitialized()) {
        fork_state = py.PyGILState_Ensure();
        if (hooks.before_fork)
            hooks.before_fork();
        py.PyOS_BeforeFork();
        forking |= WITH_GIL;
    }
}

static void after_fork(void (*tell_python)(void))
{
    if (forking & WITH_GIL) {
        tell_python();
        if (hooks.after_fork)
            hooks.after_fork();
        py.PyGILState_Release(fork_state);
    }
    if (forking & LOCKED) {
        pthread_mutex_unlock(&new_states);
        pthread_mutex_unlock(&lock);
    }
}

static void after_fork_in_parent(void)
{
    after_fork(py.PyOS_AfterFork_Parent);
}

static void after_fork_in_child(void)
{
    after_fork(py.PyOS_AfterFork_Child);
    if (forking & AMID_BOOT) { // the child has an import that will never end
        pthread_mutex_init(&lock, NULL);
        broken = "the process was forked while another thread started them";
    }
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}
