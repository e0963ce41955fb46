// `first_fork MS`: a fork that long after another thread began with the first computation of all;
// child and parent compute.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "once.h"

static void *first(void *nothing)
{
    float result[24];
    return compute_once(result) ? (void *)1 : nothing;
}

int main(int argc, char **argv)
{
    if (argc != 2 || aclInit(NULL))
        return 2;
    pthread_t thread;
    pthread_create(&thread, NULL, first, NULL);
    usleep((unsigned)atoi(argv[1]) * 1000);
    pid_t child = fork();
    float result[24];
    if (child == 0) {
        alarm(60);
        _exit(compute_once(result) != 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    void *failed = NULL;
    pthread_join(thread, &failed);
    printf("%d %d %d\n", status, failed != NULL, compute_once(result));
    return 0;
}
