// Threads share streams and events, and the process forks meanwhile; each child uses them too.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "acl/acl.h"

#include "../must.h"

static aclrtStream streams[2];
static aclrtEvent events[2];
static void *memory;
static int ends;

static void call_back(void *unused) { (void)unused; }

static void *run(void *seed)
{
    unsigned bits = *(unsigned *)seed;
    MUST(aclrtSetDevice(0));
    while (!__atomic_load_n(&ends, __ATOMIC_RELAXED)) {
        bits = bits * 1664525u + 1013904223u;
        aclrtStream stream = streams[bits >> 8 & 1], own;
        aclrtEvent event = events[bits >> 9 & 1];
        aclrtEventStatus status;
        switch (bits >> 24 & 7) {
        case 0:
            MUST(aclrtMemsetAsync(memory, 64, 0, 64, stream));
            break;
        case 1:
            MUST(aclrtRecordEvent(event, stream));
            break;
        case 2:
            MUST(aclrtStreamWaitEvent(stream, event));
            break;
        case 3:
            MUST(aclrtSynchronizeEvent(event));
            MUST(aclrtQueryEvent(event, &status));
            break;
        case 4:
            MUST(aclrtSynchronizeStream(stream));
            break;
        case 5:
            MUST(aclrtCreateStream(&own));
            MUST(aclrtMemsetAsync(memory, 64, 0, 64, own));
            MUST(aclrtDestroyStream(own));
            break;
        case 6:
            MUST(aclrtLaunchCallback(call_back, NULL, ACL_CALLBACK_BLOCK, stream));
            break;
        default:
            aclrtFree((char *)memory + 1); // fails
        }
    }
    return NULL;
}

static void use(void)
{
    alarm(20); // a lock that is never released must not last
    for (int i = 0; i < 2; ++i) {
        MUST(aclrtSynchronizeStream(streams[i]));
        MUST(aclrtMemsetAsync(memory, 64, 0, 64, streams[i]));
        MUST(aclrtRecordEvent(events[i], streams[i]));
        MUST(aclrtSynchronizeEvent(events[i]));
    }
    MUST(aclrtSynchronizeDevice());
}

int main(void)
{
    pthread_t threads[4];
    unsigned seeds[4] = {1, 2, 3, 4};
    MUST(aclInit(NULL));
    MUST(aclrtSetDevice(0));
    MUST(aclrtMalloc(&memory, 64, ACL_MEM_MALLOC_HUGE_FIRST));
    for (int i = 0; i < 2; ++i) {
        MUST(aclrtCreateStream(&streams[i]));
        MUST(aclrtCreateEvent(&events[i]));
        MUST(aclrtSubscribeReport((uint64_t)pthread_self(), streams[i]));
    }
    for (int i = 0; i < 4; ++i)
        pthread_create(&threads[i], NULL, run, &seeds[i]);
    int wrong = 0;
    for (int i = 0; i < 100; ++i) {
        pid_t child = fork();
        if (child == 0) {
            use();
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        wrong += status != 0;
    }
    __atomic_store_n(&ends, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 4; ++i)
        pthread_join(threads[i], NULL);
    printf("wrong: %d\n", wrong);
    return 0;
}
