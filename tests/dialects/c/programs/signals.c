// The interrupt stays the program's: `signals default` dies of it after a computation, `signals
// own` has its own handler called.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "once.h"

static volatile sig_atomic_t seen;

static void handler(int number)
{
    seen = number;
}

int main(int argc, char **argv)
{
    int own = argc == 2 && strcmp(argv[1], "own") == 0;
    if (own)
        signal(SIGINT, handler);
    aclInit(NULL);
    float result[24];
    printf("computed: %d\n", compute_once(result));
    fflush(stdout);
    kill(getpid(), SIGINT);
    printf("seen: %d, then %d\n", (int)seen, aclrtSetDevice(3));
    return 0;
}
