// Three pages of memory, in the middle of which something is wrong.
#ifndef PAGES_H
#define PAGES_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BAD ((void *)(uintptr_t)0x10)

static size_t page, all;

static inline char *pages(void)
{
    page = (size_t)sysconf(_SC_PAGESIZE);
    all = 3 * page;
    char *memory = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        exit(1);
    return memset(memory, 0, all);
}

// The middle one may only be used so.
static inline char *pages_that_allow(int middle)
{
    char *memory = pages();
    if (mprotect(memory + page, page, middle))
        exit(1);
    return memory;
}

static inline char *pages_with_a_hole(void)
{
    char *memory = pages();
    munmap(memory + page, page);
    return memory;
}

// Of a file that has one.
static inline char *pages_of_a_short_file(void)
{
    FILE *file = tmpfile();
    pages();
    char *memory = file ? mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0) : NULL;
    if (!file || memory == MAP_FAILED || ftruncate(fileno(file), (off_t)page))
        exit(1);
    return memory;
}

#endif
