// Python, which checks operators' calls and makes their plans: started once in a process, unless it
// runs already.
//
// libpython is opened at the first question, so that a process that runs Python uses that one, and a
// missing Python is a status. baked.h has the paths and the version that the build found.
#define _GNU_SOURCE
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ctype.h>
#include <dlfcn.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>

#include "baked.h"
#include "core.h"

extern void AnnotateIgnoreSyncBegin(const char *, int) __attribute__((weak));
extern void AnnotateIgnoreSyncEnd(const char *, int) __attribute__((weak));
extern void __lsan_disable(void) __attribute__((weak));
extern void __lsan_enable(void) __attribute__((weak));

// clang-format off
#define FUNCTIONS(USE) \
    USE(Py_IsInitialized) USE(Py_GetVersion) USE(PyPreConfig_InitIsolatedConfig) \
    USE(Py_PreInitialize) USE(PyConfig_InitIsolatedConfig) USE(PyConfig_SetBytesString) \
    USE(PyConfig_Clear) USE(Py_DecodeLocale) USE(PyWideStringList_Append) USE(PyMem_RawFree) \
    USE(Py_InitializeFromConfig) USE(PyStatus_Exception) USE(PyGILState_Ensure) \
    USE(PyGILState_Release) USE(PyEval_SaveThread) USE(PyOS_BeforeFork) \
    USE(PyOS_AfterFork_Parent) USE(PyOS_AfterFork_Child) USE(Py_BuildValue) \
    USE(PyEval_GetBuiltins) USE(PyRun_StringFlags) USE(PyDict_GetItemString) \
    USE(PyUnicode_AsUTF8) USE(PyErr_Clear) USE(PyErr_SetInterrupt) USE(Py_DecRef) \
    USE(Py_AtExit)
// clang-format on

static struct {
#define DECLARE(name) __typeof__(&name) name;
    FUNCTIONS(DECLARE)
} py;

typedef int answer(struct request *request);
// What bridge.py fills: the functions that answer questions, whether an interrupt came during a call,
// and functions that a fork calls before and after it, with the GIL.
static struct {
    answer *answers[FIND_CHIP + 1];
    int interrupted;
    void (*before_fork)(void), (*after_fork)(void);
} bridge;

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;
static volatile int is_ready, has_ended, child_of_fork;
static bool is_embedded;   // this library started Python
static char problem[1024]; // why Python cannot be used; there is no second attempt

bool is_forked(void) { return child_of_fork; }

int need_python(const struct call *call) // which keeps the kernels' code
{
    if (!has_ended)
        return 0;
    return fail(call, call->statuses->failure, "the Python that served this process has ended");
}

static bool give_up(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(problem, sizeof problem, format, arguments);
    va_end(arguments);
    fprintf(stderr, "normgrad: %s\n", problem);
    return false;
}

static void ended(void) { has_ended = 1; }

// Whether dlmopen has loaded this library into a namespace of its own, in which Python does not work.
static bool is_apart(void)
{
    Dl_info info;
    Lmid_t space = LM_ID_BASE;
    void *self = dladdr(&bridge, &info) ? dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (self) {
        dlinfo(self, RTLD_DI_LMID, &space);
        dlclose(self);
    }
    return space != LM_ID_BASE;
}

// Find Python's functions in this process, or else in the library that baked.h names.
static bool find_python(void)
{
    if (is_apart())
        return give_up("the C libraries cannot start: dlmopen has loaded them; allowed: dlopen");
    // The symbols must be global, since extension modules need them.
    if (!dlsym(RTLD_DEFAULT, "Py_IsInitialized") &&
        !dlopen(BAKED_LIBPYTHON, RTLD_NOW | RTLD_GLOBAL))
        return give_up("cannot load the Python that the C libraries were built for (%s); build "
                       "them again with `normgrad capi build`",
                       dlerror());
#define FIND(name)                                                                                 \
    if (!(py.name = (__typeof__(py.name))dlsym(RTLD_DEFAULT, #name)))                              \
        return give_up("no " #name " in the Python that runs; allowed: Python " BAKED_VERSION);
    FIND(Py_GetVersion)
    const char *version = py.Py_GetVersion();
    size_t length = strlen(BAKED_VERSION);
    if (strncmp(version, BAKED_VERSION, length) || isdigit((unsigned char)version[length]))
        return give_up("the process runs Python %.*s; allowed: " BAKED_VERSION
                       ", which the C libraries were built for",
                       (int)strcspn(version, " "), version);
    FUNCTIONS(FIND)
    return true;
}

// Start Python in isolated mode: no environment variable, user folder or working directory changes
// what is imported, and the program keeps its signal handlers.
static bool start_python(void)
{
    PyPreConfig before;
    py.PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    if (py.PyStatus_Exception(py.Py_PreInitialize(&before)))
        return give_up("the C libraries cannot start: Python cannot be prepared");
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
    if (py.PyStatus_Exception(status))
        return give_up("the C libraries cannot start: %s",
                       status.err_msg ? status.err_msg : "Python does not");
    return is_embedded = true;
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
    "        from normgrad.dialects.c import bridge\n"
    "    except ModuleNotFoundError:\n"
    "        sys.path += [path for path in " BAKED_SYS_PATH " if path not in sys.path]\n"
    "        from normgrad.dialects.c import bridge\n"
    "    bridge.fill(table, digest, embedded)\n"
    "except BaseException as error:\n"
    "    problem = f'{type(error).__name__}: {error}'\n"
    "    if getattr(error, 'name', None) == 'normgrad':\n"
    "        problem += '; if it has moved, build the C libraries again: `normgrad capi build`'\n"
    "finally:\n"
    "    for name in changed:\n"
    "        del os.environ[name]\n"
    "    if handler is not None:\n"
    "        signal.signal(signal.SIGINT, handler)\n";

static bool fill_bridge(void) // with the GIL
{
    PyObject *names =
        py.Py_BuildValue("{s:O,s:n,s:n,s:s,s:i}", "__builtins__", py.PyEval_GetBuiltins(), "table",
                         (Py_ssize_t)&bridge, "interrupted", (Py_ssize_t)&bridge.interrupted,
                         "digest", BAKED_DIGEST, "embedded", (int)is_embedded);
    PyObject *done = names ? py.PyRun_StringFlags(SCRIPT, Py_file_input, names, names, NULL) : NULL;
    PyObject *text = done ? py.PyDict_GetItemString(names, "problem") : NULL;
    const char *reason = text ? py.PyUnicode_AsUTF8(text) : "unknown cause";
    if (!*reason)
        py.Py_AtExit(ended);
    else
        give_up("the C libraries cannot start: %s", reason);
    py.PyErr_Clear();
    py.Py_DecRef(done);
    py.Py_DecRef(names);
    return !*reason;
}

static bool start(void)
{
    if (*problem || (!py.Py_IsInitialized && !find_python()))
        return false;
    if (!py.Py_IsInitialized()) {
        if (!start_python())
            return false;
        // Python's signal module installs a handler for SIGINT, in spite of the configuration.
        struct sigaction interrupt;
        sigaction(SIGINT, NULL, &interrupt);
        bool is_filled = fill_bridge();
        sigaction(SIGINT, &interrupt, NULL);
        py.PyEval_SaveThread();
        return is_filled;
    }
    PyGILState_STATE state = py.PyGILState_Ensure();
    bool is_filled = fill_bridge();
    py.PyGILState_Release(state);
    return is_filled;
}

// A function of the Python that runs, which may not be found yet.
#define RUNNING(name) ((__typeof__(&name))dlsym(RTLD_DEFAULT, #name))

// This thread's state if it holds the GIL. PyGILState_Check says that it does wherever there are
// sub-interpreters.
static PyThreadState *state_with_gil(void)
{
#if PY_VERSION_HEX < 0x030D0000
    __typeof__(&_PyThreadState_UncheckedGet) get = RUNNING(_PyThreadState_UncheckedGet);
#else
    __typeof__(&PyThreadState_GetUnchecked) get = RUNNING(PyThreadState_GetUnchecked);
#endif
    PyThreadState *now = get && RUNNING(Py_IsInitialized)() ? get() : NULL;
    return now && now->thread_id == (unsigned long)pthread_self() ? now : NULL;
}

static __thread bool is_starting;

static bool can_ask(void) // without the GIL, for which the thread that starts Python may wait
{
    if (is_ready || is_starting)
        return is_ready;
    pthread_mutex_lock(&starting);
    is_starting = true;
    if (!is_ready)
        is_ready = start();
    is_starting = false;
    pthread_mutex_unlock(&starting);
    return is_ready;
}

struct asked {
    const struct call *call;
    enum question question;
    struct request *request;
    int status;
};

static void do_ask(void *data)
{
    struct asked *asked = data;
    const struct call *call = asked->call;
    if (!can_ask()) {
        asked->status = fail(call, call->statuses->failure, "%s",
                             *problem ? problem : "Python is being started by this thread");
        return;
    }
    if ((asked->status = need_python(call)))
        return;
    char message[MESSAGE_SIZE] = "", notes[MESSAGE_SIZE] = "";
    asked->request->message = message;
    asked->request->notes = notes;
    asked->request->product = settings()->product;
    asked->request->save_invstd = settings()->save_invstd;
    asked->status = bridge.answers[asked->question](asked->request);
    if (asked->status)
        fail(call, asked->status, "%s", message);
    for (char *line = notes, *end; *line; line = end) {
        end = line + strcspn(line, "\n");
        note_device(call, "%.*s", (int)(end - line), line);
        end += *end == '\n';
    }
    if (bridge.interrupted) { // the Python that made the call gets it
        bridge.interrupted = 0;
        py.PyErr_SetInterrupt();
    }
}

int ask(const struct call *call, enum question question, struct request *request)
{
    struct asked asked = {call, question, request, 0};
    PyThreadState *saved = state_with_gil();
    if (saved && RUNNING(PyThreadState_GetInterpreter)(saved) != RUNNING(PyInterpreterState_Main)())
        return fail(call, call->statuses->failure,
                    "called by a sub-interpreter; allowed: the main interpreter");
    fenv_t arithmetic; // the program's, which must not change results, nor make NumPy trap
    fegetenv(&arithmetic);
    fesetenv(FE_DFL_ENV);
    if (saved)
        RUNNING(PyEval_SaveThread)();
    if (AnnotateIgnoreSyncBegin) // the GIL orders nothing of the program's
        AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    if (__lsan_disable) // Python keeps memory to the end
        __lsan_disable();
    with_stack(do_ask, &asked);
    if (__lsan_enable)
        __lsan_enable();
    if (AnnotateIgnoreSyncEnd)
        AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
    if (saved)
        RUNNING(PyEval_RestoreThread)(saved);
    fesetenv(&arithmetic);
    return asked.status;
}

// Stacks. Kernels need up to 256 KiB, and Python that imports and compiles less than 1 MiB.

enum { ROOM = 1 << 20, ENOUGH = 8 << 20 };

struct errand {
    void (*run)(void *);
    void *data;
    char message[MESSAGE_SIZE];
};

static void *run_errand(void *data)
{
    struct errand *errand = data;
    errand->run(errand->data);
    memcpy(errand->message, last_message(), MESSAGE_SIZE);
    return NULL;
}

void with_stack(void (*run)(void *), void *data)
{
    static __thread char *low, *high;
    if (!high) {
        pthread_attr_t attributes;
        void *start = NULL;
        size_t size = 0;
        if (!pthread_getattr_np(pthread_self(), &attributes)) {
            pthread_attr_getstack(&attributes, &start, &size);
            pthread_attr_destroy(&attributes);
        }
        low = start;
        high = size ? low + size : (char *)UINTPTR_MAX;
    }
    char *here = __builtin_frame_address(0);
    if (here < low || here >= high || here - low > ROOM) { // a coroutine's stack is its own affair
        run(data);
        return;
    }
    struct errand *errand = malloc(sizeof *errand);
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, ENOUGH);
    if (errand)
        *errand = (struct errand){.run = run, .data = data};
    if (!errand || pthread_create(&thread, &attributes, run_errand, errand)) {
        run(data);
    } else {
        pthread_join(thread, NULL);
        memcpy(last_message(), errand->message, MESSAGE_SIZE);
    }
    free(errand);
    pthread_attr_destroy(&attributes);
}

// Forks. If this library started Python, a fork waits until a start, an import or a compilation ends,
// and for the GIL. (Python's own forks have done all that.) If Python ran before and the forking
// thread holds the GIL, the fork does not wait for a start, which needs it.

static __thread int forking;
static __thread PyGILState_STATE fork_state;
enum { LOCKED = 1, WITH_GIL = 2, AMID_START = 4 };
static spin_lock *const LOCKS[] = {&object_lock, &block_lock, &plan_lock, &rare_lock};

static void before_fork(void)
{
    forking = 0;
    if (is_starting)
        return;
    if (!state_with_gil())
        pthread_mutex_lock(&starting);
    else if (pthread_mutex_trylock(&starting)) {
        forking = AMID_START;
        return;
    }
    forking = LOCKED;
    if (is_embedded && is_ready && py.Py_IsInitialized() && !has_ended) {
        fork_state = py.PyGILState_Ensure();
        if (bridge.before_fork)
            bridge.before_fork();
        py.PyOS_BeforeFork();
        forking |= WITH_GIL;
    }
    for (size_t i = 0; i < sizeof LOCKS / sizeof *LOCKS; ++i)
        lock(LOCKS[i]);
}

// The child keeps this thread's Python state: it would not find room for another first one.
static void after_fork(void (*tell_python)(void), bool is_child)
{
    for (size_t i = 0; forking & LOCKED && i < sizeof LOCKS / sizeof *LOCKS; ++i)
        unlock(LOCKS[i]);
    if (forking & WITH_GIL) {
        tell_python();
        if (bridge.after_fork)
            bridge.after_fork();
        if (is_child)
            py.PyEval_SaveThread();
        else
            py.PyGILState_Release(fork_state);
    }
    if (forking & LOCKED)
        pthread_mutex_unlock(&starting);
}

static void after_fork_in_parent(void) { after_fork(py.PyOS_AfterFork_Parent, false); }

static void after_fork_in_child(void)
{
    child_of_fork = 1;
    after_fork(py.PyOS_AfterFork_Child, true);
    if (forking & AMID_START) { // the child has an import that will never end
        pthread_mutex_init(&starting, NULL);
        snprintf(problem, sizeof problem,
                 "the C libraries cannot start: the process was forked "
                 "while another thread started them");
    }
    streams_forked();
    forget_objects();
    forget_parents_blocks();
}

__attribute__((constructor)) static void watch_forks(void)
{
    pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}
