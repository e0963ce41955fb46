// What the report is made of.
#ifndef NORMGRAD_REPORT_H
#define NORMGRAD_REPORT_H

enum { MOST_LEFTOVERS = 256 };
struct leftovers {
    int count;
    struct leftover {
        const char *maker;
        void *from;
        size_t bytes, number; // the number of the first of them
        int count;
        char what[240];
    } each[MOST_LEFTOVERS];
};
// Count something that the program has left, which a function made when it was called from a place.
void leftover(struct leftovers *all, const char *what, const char *maker, void *from, size_t bytes,
              size_t number);
// " in f (host.c:7)" for the call that returns to an address; "" if nothing is known. Files and lines
// need a program compiled with -g, and addr2line.
const char *place_of(void *from, char *text, size_t size);
// Make the program fail when it ends, if that is wanted for findings; and print one.
void fail_at_end(void);
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
