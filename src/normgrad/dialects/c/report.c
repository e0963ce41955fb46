// How calls fail, what the environment asks for, and the report: failed calls, calls that a device may
// refuse, and what the program has not destroyed or freed.
#define _GNU_SOURCE
#include "core.h"

#include <acl/acl.h>
#include <aclnn/acl_meta.h>
#include <dlfcn.h>
#include <hccl/hccl_types.h>
#include <infinicore.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <unistd.h>

const struct statuses OF_ACL = {ACL_ERROR_RT_PARAM_INVALID, ACL_ERROR_RT_PARAM_INVALID,
                                ACL_ERROR_INTERNAL_ERROR};
const struct statuses OF_HCCL = {HCCL_E_PARA, HCCL_E_PTR, HCCL_E_INTERNAL};
const struct statuses OF_ACLNN = {ACLNN_ERR_PARAM_INVALID, ACLNN_ERR_PARAM_NULLPTR,
                                  ACLNN_ERR_INNER};
const struct statuses OF_PHASE_2 = {ACLNN_ERR_PARAM_INVALID, ACLNN_ERR_PARAM_NULLPTR,
                                    ACLNN_ERR_RUNTIME_ERROR};
const struct statuses OF_INFINI = {INFINI_STATUS_BAD_PARAM, INFINI_STATUS_BAD_PARAM,
                                   INFINI_STATUS_INTERNAL_ERROR};

// Settings

static struct settings current;
spin_lock rare_lock;

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

int read_settings(const struct call *call, int status)
{
    const char *report = variable("NORMGRAD_CAPI_REPORT"),
               *host_memory = variable("NORMGRAD_CAPI_HOST_MEMORY"),
               *devices = variable("NORMGRAD_CAPI_DEVICES"),
               *streams = variable("NORMGRAD_CAPI_STREAMS");
    char *end;
    long count = strtol(*devices ? devices : "1", &end, 10);
    bool is_count = count >= 1 && count <= 64 && !*end;
    lock(&rare_lock);
    current.is_fatal = !strcmp(report, "error");
    current.report = *report && strcmp(report, "0"); // even for a wrong value, which it then names
    current.host_memory = !strcmp(host_memory, "1");
    current.has_threads = !strcmp(streams, "threads");
    current.devices = is_count ? (int)count : 1;
    snprintf(current.product, sizeof current.product, "%s", variable("NORMGRAD_ACL_PRODUCT"));
    snprintf(current.save_invstd, sizeof current.save_invstd, "%s",
             variable("NORMGRAD_ACL_SAVE_INVSTD"));
    __atomic_add_fetch(&current.version, 1, __ATOMIC_RELEASE);
    unlock(&rare_lock);
    if (current.report && !current.is_fatal && strcmp(report, "1"))
        return fail(call, status, "NORMGRAD_CAPI_REPORT: '%s'; allowed: 1, error, 0, or none",
                    report);
    if (*host_memory && strcmp(host_memory, "0") && !current.host_memory)
        return fail(call, status, "NORMGRAD_CAPI_HOST_MEMORY: '%s'; allowed: 1, 0, or none",
                    host_memory);
    if (!is_count)
        return fail(call, status, "NORMGRAD_CAPI_DEVICES: '%s'; allowed: 1 to 64", devices);
    if (*streams && !current.has_threads)
        return fail(call, status, "NORMGRAD_CAPI_STREAMS: '%s'; allowed: 'threads', or none",
                    streams);
    return 0;
}

const struct settings *settings(void)
{
    if (!__atomic_load_n(&current.version, __ATOMIC_ACQUIRE))
        read_settings(NULL, 0);
    return &current;
}

// Failures

// A thread's message is allocated when it is first asked for: a stack may be as small as 16 KiB, and
// holds the thread's variables too.
static pthread_key_t message_key;
static pthread_once_t message_once = PTHREAD_ONCE_INIT;
static __thread char *message;

static void drop_message(void *text)
{
    message = NULL; // destructors of the program's own may call after this one
    free(text);
}

static void make_message_key(void) { pthread_key_create(&message_key, drop_message); }

char *last_message(void)
{
    static char nothing[MESSAGE_SIZE];
    if (!message) {
        pthread_once(&message_once, make_message_key);
        message = calloc(1, MESSAGE_SIZE);
        pthread_setspecific(message_key, message);
    }
    return message ? message : nothing;
}

// Lines that were noted since the last report: each is printed at once, and counted after that.
enum { ERRORS, DEVICES, SORTS, MOST_LINES = 1000 };
static struct line {
    int sort, count;
    char *text;
} lines[MOST_LINES];
static int line_count, ending;

static void note(int sort, const char *text)
{
    if (!settings()->report)
        return;
    lock(&rare_lock);
    struct line *line = lines;
    while (line < lines + line_count && strcmp(line->text, text))
        ++line;
    char *copy = line == lines + line_count && line_count < MOST_LINES ? strdup(text) : NULL;
    bool is_new = copy;
    if (is_new) {
        *line = (struct line){sort, 0, copy};
        ++line_count;
    }
    if (line < lines + line_count)
        ++line->count;
    unlock(&rare_lock);
    if (is_new)
        fprintf(stderr, "normgrad: %s\n", text);
}

int fail_and_note(const struct call *call, bool is_noted, int status, const char *format, ...)
{
    if (!call)
        return status;
    va_list arguments;
    char *text = last_message();
    int length = snprintf(text, MESSAGE_SIZE, "%s: ", call->function);
    va_start(arguments, format);
    vsnprintf(text + length, (size_t)(MESSAGE_SIZE - length), format, arguments);
    va_end(arguments);
    if (is_noted && settings()->report) {
        char line[MESSAGE_SIZE + 32];
        snprintf(line, sizeof line, status ? "error %d: %s" : "error%.0d: %s", status, text);
        note(ERRORS, line);
    }
    return status;
}

void note_device(const struct call *call, const char *format, ...)
{
    if (!settings()->report)
        return;
    char line[MESSAGE_SIZE];
    int length = snprintf(line, sizeof line, "device: %s: ", call->function);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line + length, sizeof line - (size_t)length, format, arguments);
    va_end(arguments);
    note(DEVICES, line);
}

void fail_at_end(void)
{
    if (settings()->is_fatal)
        ending = 1;
}

// Print a finding.
static void __attribute__((format(printf, 1, 2))) complain(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("normgrad: ", stderr);
    vfprintf(stderr, format, arguments);
    fputs("\n", stderr);
    va_end(arguments);
    fail_at_end();
}

void report_lines(void)
{
    static const char *const NAMES[SORTS][2] = {
        {"call failed", "calls failed"},
        {"call that may fail on devices", "calls that may fail on devices"}};
    lock(&rare_lock);
    for (int sort = 0; sort < SORTS; ++sort) {
        int total = 0;
        for (int i = 0; i < line_count; ++i)
            total += lines[i].sort == sort ? lines[i].count : 0;
        if (total)
            complain("%d %s:", total, NAMES[sort][total > 1]);
        for (int i = 0; i < line_count; ++i) {
            char times[32] = "";
            if (lines[i].count > 1)
                snprintf(times, sizeof times, " (%d times)", lines[i].count);
            if (lines[i].sort == sort)
                complain("  %s%s", lines[i].text, times);
        }
    }
    for (int i = 0; i < line_count; ++i)
        free(lines[i].text);
    line_count = 0;
    unlock(&rare_lock);
}

// Places in the program

// " in f (host.c:7)" for the call that returns to an address; "" if nothing is known. Files and lines
// need a program compiled with -g, and addr2line.
static const char *place_of(void *from, char *text, size_t size)
{
    Dl_info info;
    *text = 0;
    if (!from || !dladdr(from, &info) || !info.dli_fname)
        return text;
    const ElfW(Ehdr) *file = info.dli_fbase;
    const char *path = access(info.dli_fname, R_OK) ? "/proc/self/exe" : info.dli_fname;
    size_t at = (size_t)from - 1 - (file->e_type == ET_EXEC ? 0 : (size_t)info.dli_fbase);
    char command[4200], function[512] = "", line[512] = "";
    snprintf(command, sizeof command, "addr2line -sfCe '%s' %#zx 2>/dev/null", path, at);
    FILE *tool = strchr(path, '\'') ? NULL : popen(command, "r");
    if (tool) {
        if (!fgets(function, sizeof function, tool) || !fgets(line, sizeof line, tool))
            *line = 0;
        pclose(tool);
    }
    function[strcspn(function, "\n")] = 0;
    line[strcspn(line, " \n")] = 0;
    if (!*function || *function == '?')
        snprintf(function, sizeof function, "%s", info.dli_sname ? info.dli_sname : "");
    if (*function)
        snprintf(text, size, " in %s", function);
    if (*line && !strchr(line, '?'))
        snprintf(text + strlen(text), size - strlen(text), " (%s)", line);
    return text;
}

// What a program has left: those of one kind from one place are one line.

enum { MOST_LEFTOVERS = 256 };
static int leftover_count;
static struct leftover {
    const char *maker;
    void *from;
    size_t bytes, number; // the number of the first of them
    int count;
    char what[240];
} leftovers[MOST_LEFTOVERS];

void leftover(const char *what, const char *maker, void *from, size_t bytes, size_t number)
{
    for (struct leftover *each = leftovers; each < leftovers + leftover_count; ++each)
        if (each->from == from && each->maker == maker) {
            each->bytes += bytes;
            each->number = number < each->number ? number : each->number;
            ++each->count;
            return;
        }
    if (leftover_count == MOST_LEFTOVERS)
        return;
    struct leftover *new = &leftovers[leftover_count++];
    *new = (struct leftover){maker, from, bytes, number, 1, ""};
    snprintf(new->what, sizeof new->what, "%s", what);
}

static int by_number(const void *a, const void *b)
{
    return ((const struct leftover *)a)->number < ((const struct leftover *)b)->number ? -1 : 1;
}

static void report_leftovers(void)
{
    char more[40], place[700];
    qsort(leftovers, (size_t)leftover_count, sizeof *leftovers, by_number);
    for (struct leftover *each = leftovers; each < leftovers + leftover_count; ++each) {
        place_of(each->from, place, sizeof place);
        snprintf(more, each->count > 1 ? sizeof more : 1,
                 each->bytes ? " in %d blocks" : " and %d more",
                 each->bytes ? each->count : each->count - 1);
        if (each->bytes)
            complain("never freed: %zu bytes%s from %s%s", each->bytes, more, each->maker, place);
        else
            complain("never destroyed: %s%s from %s%s", each->what, more, each->maker, place);
    }
    leftover_count = 0;
}

// This runs after the program's own static destructors, which may still free memory.
__attribute__((destructor)) static void end(void)
{
    if (settings()->report) {
        report_lines();
        count_objects();
        report_leftovers();
        count_blocks();
        report_leftovers();
    }
    if (ending) {
        fflush(NULL);
        _exit(ending);
    }
}
